package messaging_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/wire"
)

func TestPauseStopsOneTopic(t *testing.T) {
	s := wire.Start(t)
	client := dial(t, s.URL())
	cfg := quickConfig(messaging.Shared, "")
	cfg.Topics = []string{"one", "two"}
	cfg.Retry.Topic, cfg.Retry.DeadLetterTopic = "retry", "dead"
	cfg.PrefetchMessages = 4
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	c.Pause("one")
	require.True(t, c.Paused("one"))
	require.False(t, c.Paused("two"))
	var got payloads
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			got.add(d)
			return nil
		})
	}()
	require.NoError(t, s.WaitConsumers(testContext(t), "one", "sub", 1))
	require.NoError(t, s.WaitConsumers(testContext(t), "two", "sub", 1))
	for range 50 {
		s.Publish("one", wire.Message{Payload: []byte("1")})
	}
	for range 50 {
		s.Publish("two", wire.Message{Payload: []byte("2")})
	}
	eventually(t, "the other topic goes on", func() bool { return len(got.list()) == 50 })
	require.NotContains(t, got.list(), "1")
	c.Resume()
	eventually(t, "what waited is handled", func() bool { return len(got.list()) == 100 })
	cancel()
	require.NoError(t, <-ended)
}
