package messaging_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// A pattern matches whole names: what the consumer rejects does not come back to it as a topic that
// matches in part.
func TestPatternMatchesWholeNames(t *testing.T) {
	t.Parallel()
	const in, dead, like = "persistent://public/default/in", "persistent://public/default/in-dead", "persistent://public/default/main"
	for _, pattern := range []string{in, "persistent://public/default/in|other"} {
		t.Run(pattern, func(t *testing.T) {
			s := fakebroker.Start(t)
			for _, topic := range []string{in, dead, like} {
				s.CreateTopic(topic, 0)
				s.Publish(topic, fakebroker.Message{Payload: []byte(topic)})
			}
			cfg := quickConfig(messaging.Exclusive, "")
			cfg.Topics, cfg.Pattern = nil, pattern
			cfg.Retry.DeadLetterTopic, cfg.Retry.DeadLetterSubscription = dead, "operators"
			require.NoError(t, cfg.Validate())
			c, err := dial(t, s.URL()).Consumer(cfg)
			require.NoError(t, err)
			var handled atomic.Int32
			_, err = c.Drain(testContext(t), func(context.Context, *messaging.Delivery) error {
				handled.Add(1)
				return messaging.Reject(errors.New("never"))
			})
			require.NoError(t, err)
			require.EqualValues(t, 1, handled.Load())
			require.Equal(t, 2, s.Count(dead), "the message that was there, and one dead letter")
		})
	}
}

// Compaction that keeps others of a batch leaves messages without key, payload and properties of
// those that it removes.
func TestWhatCompactionLeavesIsNotHandled(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.PublishBatch(topic, fakebroker.None, fakebroker.Message{}, fakebroker.Message{Key: "k", Payload: []byte("newest")}, fakebroker.Message{})
	cfg := quickConfig(messaging.Exclusive, "")
	cfg.ReadCompacted = true
	c, err := dial(t, s.URL()).Consumer(cfg)
	require.NoError(t, err)
	var got payloads
	_, err = c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"newest"}, got.list())
	require.Equal(t, 3, s.Acked(topic, "sub"), "the whole entry")
}
