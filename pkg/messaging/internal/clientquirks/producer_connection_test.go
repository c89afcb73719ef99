package clientquirks_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestProducerEndsWithItsConnection(t *testing.T) {
	s := start(t)
	var lost atomic.Int32
	c := connect(t, s.URL(), func(o *pulsar.ClientOptions) { o.OperationTimeout = time.Second })
	produce(t, c, func(o *pulsar.ProducerOptions) {
		clientquirks.NoReconnect(o, func() { lost.Add(1) })
	})
	s.CutConnections()
	eventually(t, "it is lost", func() bool { return lost.Load() == 1 })
	require.Never(t, func() bool { return len(s.Producers(topic)) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
}
