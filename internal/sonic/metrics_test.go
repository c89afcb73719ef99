package sonic_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestCommandsAreCounted: what is refused, too, for an alert is about it, and what runs within a
// transaction.
func TestCommandsAreCounted(t *testing.T) {
	t.Parallel()
	s := run(t, stack.PrivateRedis(t), "")
	s.open(t)
	c := s.client(t, nil)
	require.ErrorContains(t, c.FlushAll(t.Context()).Err(), "ERR Sonic refuses 'flushall'")
	_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Set(t.Context(), "a", 1, 0)
		p.Get(t.Context(), "a")
		return nil
	})
	require.NoError(t, err)
	_, body := s.page(t, "/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	for _, p := range problems { // those of others, such as the Pulsar client, are not ours to name
		require.NotRegexp(t, "^(sonic|messaging)_", p.Metric, p.Text)
	}
	for _, line := range []string{
		`sonic_commands_total{class="refused"} 1`, `sonic_commands_total{class="write"} 1`, `sonic_commands_total{class="read"} 1`,
		`sonic_commands_total{class="transaction"} 2`,
	} {
		require.Contains(t, body, line+"\n")
	}
}
