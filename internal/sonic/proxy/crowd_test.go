package proxy_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/sonic/commands"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestACrowdIsKeptApart: many clients pipeline at the same time, each in keys of its own, and get
// what a bare Redis replies to the same. Their short writes share calls with those of others, which
// go away in the middle of commands.
func TestACrowdIsKeptApart(t *testing.T) {
	t.Parallel()
	const clients, goers, goings = 12, 3, 40
	s, batches := random(t, 60)
	conf := stack.Conf(map[string]string{"hash-max-listpack-value": "1000"})
	bare, e := stack.PrivateRedis(t, conf), start(t, opened(t, conf), nil)
	var crowd sync.WaitGroup
	for i := range clients {
		pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
		r := rand.New(rand.NewPCG(s, uint64(i)))
		own := "c" + strconv.Itoa(i) + ":"
		w := commands.Words{Rand: r, Keys: func() string { return own + strconv.Itoa(r.IntN(5)) }}
		crowd.Go(func() {
			for n := range batches {
				batch := [][]string{{"HELLO", strconv.Itoa(2 + i%2)}}
				for range 1 + r.IntN(12) {
					switch r.IntN(8) {
					case 0:
						batch = append(batch, w.Write())
					case 1:
						batch = append(batch, []string{"ECHO", own + strconv.Itoa(n)}, []string{"GET", own + "own"})
					case 2:
						batch = append(batch, []string{"SELECT", strconv.Itoa(r.IntN(2))})
					default:
						batch = append(batch, []string{"SET", own + "own", own + strconv.Itoa(n)}, []string{"INCR", own + "n"}, []string{"INCR", own + "own"})
					}
				}
				if !pair.sameBatch(t, batch) {
					return
				}
			}
		})
	}
	for i := range goers {
		r := rand.New(rand.NewPCG(s, uint64(clients+i)))
		crowd.Go(func() {
			for range goings {
				c := dial(t, e.addr)
				var text []byte
				for range 1 + r.IntN(100) {
					text = resp.AppendCommand(text, [][]string{
						{"SET", "k", "v"}, {"INCR", "n"}, {"LPUSH", "k", "x"}, {"GET", "k"}, {"BLPOP", "l", "0"}, {"MULTI"}, {"EXEC"}, {"WATCH", "k"}, {"SUBSCRIBE", "x"},
					}[r.IntN(9)]...)
				}
				_, _ = c.Write(text[:r.IntN(len(text))])
				_ = c.Close()
			}
		})
	}
	crowd.Wait()
}

// sameBatch sends both a batch that begins with HELLO, whose reply names the client, and compares
// the others.
func (b both) sameBatch(t *testing.T, batch [][]string) bool {
	t.Helper()
	var text []byte
	for _, one := range batch {
		text = resp.AppendCommand(text, one...)
	}
	for _, c := range []*connection{b.bare, b.proxied} {
		_ = c.SetDeadline(time.Now().Add(await.Patience))
		if _, err := c.Write(text); !assert.NoError(t, err) {
			return false
		}
	}
	for i, one := range batch {
		want, err1 := b.bare.reply()
		got, err2 := b.proxied.reply()
		if !assert.NoError(t, err1) || !assert.NoError(t, err2, "no reply to %q", one) {
			return false
		}
		if i > 0 && !assert.Equal(t, want, got, "reply to %q", one) {
			return false
		}
	}
	return true
}
