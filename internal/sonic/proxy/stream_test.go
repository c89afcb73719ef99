package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/e2e/sonic/commands"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestSameStream sends the same random commands to a bare Redis and through the endpoint,
// pipelined, in both protocols.
func TestSameStream(t *testing.T) {
	t.Parallel()
	for _, proto := range []string{"2", "3"} {
		t.Run("RESP"+proto, func(t *testing.T) {
			t.Parallel()
			s, rounds := random(t, 500)
			w := commands.Words{Rand: rand.New(rand.NewPCG(s, 1))}
			// A hash of long values has no order that two servers share.
			conf := stack.Conf(map[string]string{"hash-max-listpack-value": "1000"})
			bare, e := stack.PrivateRedis(t, conf), start(t, opened(t, conf), nil)
			pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
			for _, c := range []*connection{pair.bare, pair.proxied} {
				c.ask(t, "HELLO", proto)
			}
			var log []string
			for round := range rounds {
				var batch [][]string
				for range 1 + w.IntN(12) {
					switch w.IntN(10) {
					case 0:
						batch = append(batch, w.Transaction()...)
					case 1, 2, 3:
						batch = append(batch, w.Read())
					case 4:
						batch = append(batch, []string{"select", strconv.Itoa(w.IntN(2))})
					default:
						batch = append(batch, w.Write())
					}
				}
				var text []byte
				for _, one := range batch {
					text = resp.AppendCommand(text, one...)
					log = append(log, fmt.Sprintf("%q", one))
				}
				pair.bare.send(t, string(text))
				pair.proxied.send(t, string(text))
				for i, one := range batch {
					want, err := pair.bare.reply()
					require.NoError(t, err)
					got, err := pair.proxied.reply()
					require.NoError(t, err, "round %d: no reply to %q, want %q", round, one, short(want))
					if want != got {
						before := log[max(0, len(log)-len(batch)+i-12) : len(log)-len(batch)+i]
						require.Equal(t, want, got, "round %d: reply to %q after\n%s", round, one, strings.Join(before, "\n"))
					}
				}
			}
		})
	}
}
