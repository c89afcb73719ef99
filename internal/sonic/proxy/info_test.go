package proxy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// TestInfoCountsClients: INFO counts the clients of this Sonic, and not its
// connections to Redis.
func TestInfoCountsClients(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, three := dial(t, e.addr), dial(t, e.addr)
	three.ask(t, "HELLO", "3")
	counts := func(connected, blocked int) {
		t.Helper()
		want := []string{fmt.Sprintf("\r\nconnected_clients:%d\r\n", connected), fmt.Sprintf("\r\nblocked_clients:%d\r\n", blocked)}
		for _, who := range []*connection{c, three} {
			for _, words := range [][]string{{"INFO"}, {"INFO", "clients"}, {"INFO", "server", "Clients"}, {"INFO", "everything"}, {"INFO", "all"}, {"INFO", "default"}, {"EXEC"}} {
				got := ""
				require.Eventually(t, func() bool {
					if words[0] == "EXEC" {
						who.ask(t, "MULTI")
						who.ask(t, "INFO", "clients")
					}
					got = who.ask(t, words...)
					return strings.Contains(got, want[0]) && strings.Contains(got, want[1])
				}, await.Patience, time.Millisecond, "%q is not in the reply to %q", want, words)
			}
		}
	}
	counts(2, 0)
	require.NotContains(t, c.ask(t, "INFO", "server"), "_clients:")
	all := make([]*connection, 5)
	for i, words := range []string{"blpop l 0\r\n", "bzpopmin z 0\r\n", "xread block 0 streams x $\r\n", "xread block 0 streams x $\r\nxread block 0 streams y $\r\n", "blmove l m left left 0\r\n"} {
		all[i] = dial(t, e.addr)
		all[i].send(t, words)
		counts(3+i, 1+i)
	}
	c.ask(t, "XADD", "x", "1-1", "f", "v")
	counts(7, 4)
	require.NoError(t, all[3].Close())
	counts(6, 3)
	require.NoError(t, all[0].Close())
	counts(5, 2)
	c.ask(t, "RPUSH", "l", "a")
	counts(5, 1)
	c.ask(t, "ZADD", "z", "1", "a")
	counts(5, 0)
}
