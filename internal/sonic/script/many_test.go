package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// manyCall returns the call of several writes, each in words.
func manyCall(mode string, writes ...[]string) []string {
	call := []string{"FCALL", "sonic_many", "1", script.KeysOf(0).Outbox, mode}
	for _, w := range writes {
		call = append(call, fmt.Sprintf("%s %d", strings.ToUpper(w[0]), len(w)-1))
		call = append(call, w[1:]...)
	}
	return call
}

// TestManyIsEach runs the same random writes several to a call and each in a call of its own: the
// replies are the same, and so is what the two Redises hold, and know.
func TestManyIsEach(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := fromEnvironment(t, 300)
	g := generator{rand.New(rand.NewPCG(p.seed, 0))}
	for _, policy := range []string{"lww", "none"} {
		for _, version := range []int{2, 3} {
			many, manyWire := newSonic(t, []string{"b"}, policy)
			each, eachWire := newSonic(t, []string{"b"}, policy)
			mode := "0"
			if version == 3 {
				manyWire.do("HELLO", "3")
				eachWire.do("HELLO", "3")
				mode = "0r"
			}
			ran := make(map[string]int)
			for range p.steps {
				var writes [][]string
				for len(writes) < 1+g.IntN(10) {
					w := g.command()
					if name := strings.ToLower(w[0]); script.InMany(name) && len(w) > 1 && len(w) < 10 {
						writes = append(writes, w)
						ran[name]++
					}
				}
				var want strings.Builder
				fmt.Fprintf(&want, "*%d\r\n", len(writes))
				for _, w := range writes {
					call := append([]string{"FCALL", "sonic_" + strings.ToLower(w[0]), "1", script.KeysOf(0).Outbox, mode}, w[1:]...)
					want.WriteString(eachWire.do(call...))
				}
				require.Equal(t, want.String(), manyWire.do(manyCall(mode, writes...)...), "%q", writes)
			}
			require.NotEmpty(t, ran)
			require.Equal(t, holdings(ctx, t, each, false), holdings(ctx, t, many, false))
			require.Equal(t, notedFields(ctx, t, each), notedFields(ctx, t, many))
		}
	}
}

// notedFields returns the fields of the hash of versions, each with what stands behind its version.
func notedFields(ctx context.Context, t *testing.T, c redis.Cmdable) map[string]string {
	t.Helper()
	all, err := c.HGetAll(ctx, script.KeysOf(0).Versions).Result()
	require.NoError(t, err)
	for field, version := range all {
		_, rest, _ := strings.Cut(version, " ")
		if _, err := strconv.ParseInt(rest, 10, 64); err == nil {
			rest = "expiry" // of two Redises at two moments
		}
		all[field] = rest
	}
	return all
}

// TestManyEntries: the effects of writes of strings are one entry, which others end.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c, w := newSonic(t, []string{"b"}, "lww", "c:", "counter")
	reply := w.do(manyCall("0", words("SET a 1"), words("INCR a"), words("LPUSH a x"), words("INCR c:n"), words("HSET h f v"), words("SADD s m"), words("SET b 1 NX"), words("SET b 2 NX"))...)
	require.Equal(t, "*8\r\n+OK\r\n:2\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n:1\r\n:1\r\n:1\r\n+OK\r\n$-1\r\n", reply)
	var ops []string
	for _, e := range entries(ctx, t, c) {
		op := ""
		for _, one := range e {
			op += fmt.Sprint(one[0])
		}
		ops = append(ops, op)
	}
	require.Equal(t, []string{"SS", "I", "H", "A", "S"}, ops)
}
