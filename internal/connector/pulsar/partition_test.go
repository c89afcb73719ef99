package pulsar

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TestBrokerThatGoesBackIsFollowed: a broker that has lost its position delivers older messages
// again, and then those that the pipeline still has. They are passed on again, too: the newest comes
// last. What a session's end brings again after that is not.
func TestBrokerThatGoesBackIsFollowed(t *testing.T) {
	var h holding
	p := &partition{ordered: true}
	p.pipeline = pipelinesTo(&h, "to").Open("test", p.commit)
	t.Cleanup(p.pipeline.Abandon)
	deliver := func(from, to int) {
		for i := from; i <= to; i++ {
			id, err := messaging.ParseMessageID([]byte{1 << 3, 1, 2 << 3, byte(i)}) // MessageIdData: ledger 1, entry i
			require.NoError(t, err)
			p.offer(testContext(t), &message.Message{Value: []byte(strconv.Itoa(i))}, id, messaging.PendingDelivery{})
		}
	}
	passed := func() (all []string) {
		for _, c := range h.all() {
			all = append(all, c.value)
		}
		return all
	}
	deliver(1, 10)
	for _, c := range h.all()[:5] {
		c.done(nil)
	}
	committed := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.watermark == 5
	}
	waitFor(t, "committed", committed)
	deliver(7, 10) // a session has ended
	require.Len(t, h.all(), 10)
	deliver(3, 12) // the broker has lost its position
	deliver(8, 13) // a session has ended once more
	require.Equal(t, []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13"}, passed())
}
