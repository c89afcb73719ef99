package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestRefusedSubscriptions: a refusal has its place among the replies, and a client is subscribed to
// nothing that was refused: by Sonic, or by Redis, here because of its ACL.
func TestRefusedSubscriptions(t *testing.T) {
	t.Parallel()
	bare, srv := stack.PrivateRedis(t), opened(t)
	for _, one := range []*stack.RedisServer{bare, srv} {
		require.NoError(t, one.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "resetchannels", "&a*", "&{sonic:*").Err())
	}
	e := start(t, srv, nil)
	reset := string(resp.AppendCommand(nil, "RESET"))
	for _, text := range []string{
		"subscribe x\r\nget k\r\nunsubscribe\r\nget k\r\n",
		"get k\r\nsubscribe a1 x\r\nget k\r\nping\r\n",
		"subscribe a1\r\nsubscribe x\r\nping\r\nsubscribe a1\r\nunsubscribe\r\nget k\r\n",
		"psubscribe x*\r\nsubscribe a1\r\npunsubscribe\r\nping\r\nget k\r\n",
		"ssubscribe x\r\nget k\r\nssubscribe a1 a1\r\nsunsubscribe\r\nget k\r\n",
		"subscribe a1\r\nunsubscribe a1 a1\r\nget k\r\nunsubscribe\r\n",
	} {
		for _, hello := range []string{"hello 2\r\n", "hello 3\r\n"} {
			pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
			for _, c := range []*connection{pair.bare, pair.proxied} {
				c.send(t, hello)
				_, err := c.reply()
				require.NoError(t, err)
			}
			pair.sameUntil(t, text+reset, "+RESET")
		}
	}
	const refused = "-NOPERM keys that begin with {sonic: belong to Sonic\r\n"
	for _, proto := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", proto)
		letter := map[string]string{"2": "*", "3": ">"}[proto]
		c.send(t, "get k\r\nget {sonic:0}x\r\nget k\r\nssubscribe a1 a2\r\nssubscribe a3\r\nsunsubscribe\r\nget k\r\nmulti\r\nget {sonic:0}x\r\nsubscribe a1\r\nget k\r\nexec\r\nget k\r\n")
		null := map[string]string{"2": "$-1\r\n", "3": "_\r\n"}[proto]
		for _, want := range []string{null, refused, null,
			letter + "3\r\n$10\r\nssubscribe\r\n$2\r\na1\r\n:1\r\n", letter + "3\r\n$10\r\nssubscribe\r\n$2\r\na2\r\n:2\r\n",
			letter + "3\r\n$10\r\nssubscribe\r\n$2\r\na3\r\n:3\r\n", "", "", "", null, "+OK\r\n", refused,
			"-ERR Sonic refuses 'subscribe' inside a transaction\r\n", "+QUEUED\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n", null} {
			got, err := c.reply()
			require.NoError(t, err)
			if want != "" {
				require.Equal(t, want, got, proto)
			}
		}
	}
}
