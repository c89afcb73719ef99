package clientquirks_test

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestConnectionsOfAConsumerAreCounted(t *testing.T) {
	t.Parallel()
	s := start(t)
	var c clientquirks.Connections
	consumer := subscribe(t, connect(t, s.URL(), nil), func(o *pulsar.ConsumerOptions) { o.BackOffPolicyFunc = c.Policy })
	require.Zero(t, c.Current.Load(), "the first connection asks for no policy")
	sent := time.Now()
	s.CutConnections()
	eventually(t, "it reconnects", func() bool { return c.Current.Load() == 1 })
	require.True(t, c.Lost(sent))
	require.False(t, c.Lost(sent.Add(-time.Minute)), "the broker has what it had for that long")
	require.False(t, c.Redelivering())
	_, err := consumer.GetLastMessageIDs()
	require.NoError(t, err)
	require.EqualValues(t, 2, c.Current.Load(), "it asks for a policy here, too")
	c.Asked(1)
	eventually(t, "the broker delivers again", c.Redelivering)
}
