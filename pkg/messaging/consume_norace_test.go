//go:build !race

package messaging_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/wire"
)

// A partitioned consumer that gives up soon after it has subscribed reads what Subscribe wrote
// without a lock: a data race of pulsar-client-go v0.21.0 (consumer_impl.go, newInternalConsumer
// against closeWithCause), which the race detector reports as such.

func TestExclusiveOwnsAllPartitionsForItsSession(t *testing.T) {
	s := wire.Start(t)
	client := dial(t, s.URL())
	s.CreateTopic(topic, 3)
	var o owner
	r := startOwner(t, client, quickConfig(messaging.Exclusive, messaging.OrderPartition), &o)
	eventually(t, "all partitions", func() bool { return slices.Equal(o.partitions(), []int{0, 1, 2}) })
	s.FailSubscribe(topic+"-partition-0", wire.ConsumerBusy, 1)
	s.CloseConsumers(topic)
	eventually(t, "the session's end is a loss, the next session a gain", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.gained >= 6 && len(o.lost) >= 3 && len(o.owned) == 3
	})
	r.stop(t)
	require.Empty(t, o.partitions())
}
