package messaging_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

func TestPauseStopsOneTopic(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	cfg := quickConfig(messaging.Shared, "")
	cfg.Topics = []string{"one", "two"}
	cfg.Retry.Topic, cfg.Retry.DeadLetterTopic = "retry", "dead"
	cfg.PrefetchMessages = 4
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	c.Pause("one")
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
		s.Publish("one", fakebroker.Message{Payload: []byte("1")})
	}
	for range 50 {
		s.Publish("two", fakebroker.Message{Payload: []byte("2")})
	}
	eventually(t, "the other topic goes on", func() bool { return len(got.list()) == 50 })
	require.NotContains(t, got.list(), "1")
	c.Resume()
	eventually(t, "what waited is handled", func() bool { return len(got.list()) == 100 })
	cancel()
	require.NoError(t, <-ended)
}

// A consumer that waits for messages when it is paused keeps what arrives afterwards, and handles
// it in order when it is resumed.
func TestNothingThatArrivesAfterPauseIsHandled(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	c, err := dial(t, s.URL()).Consumer(quickConfig(messaging.Exclusive, messaging.OrderPartition))
	require.NoError(t, err)
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
	s.Publish(topic, fakebroker.Message{Payload: []byte("before")})
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
	c.Pause()
	var batch []fakebroker.Message
	for _, n := range numbered(20) {
		batch = append(batch, fakebroker.Message{Payload: []byte(n)})
	}
	s.PublishBatch(topic, fakebroker.None, batch...)
	require.Never(t, func() bool { return len(got.list()) > 1 }, 200*time.Millisecond, 5*time.Millisecond)
	require.Equal(t, 20, s.Unacked(topic, "sub"), "it waits here")
	c.Resume()
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 21))
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, append([]string{"before"}, numbered(20)...), got.list())
}

// What arrives during a pause waits. It is not taken for dropped, which would end the session and
// take along what is held for another attempt.
func TestPauseDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	c, err := dial(t, s.URL(), messaging.WithRegisterer(reg)).Consumer(quickConfig(messaging.Exclusive, messaging.OrderKey))
	require.NoError(t, err)
	var attempts atomic.Int32
	var got payloads
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			if d.Key == "held" && attempts.Add(1) == 1 {
				return messaging.RetryAfter(errors.New("unavailable"), 5*time.Second) // sessions are looked at every second
			}
			got.add(d)
			return nil
		})
	}()
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("before")}, fakebroker.Message{Key: "held", Payload: []byte("held")})
	eventually(t, "the first attempt", func() bool { return attempts.Load() == 1 })
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
	c.Pause()
	s.Publish(topic, fakebroker.Message{Key: "b", Payload: []byte("after")})
	eventually(t, "what is held gets its attempt", func() bool { return len(got.list()) == 2 })
	c.Resume()
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 3))
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, []string{"before", "held", "after"}, got.list())
	require.Zero(t, counted(t, reg, "aviary_messaging_resubscribes_total", "sub", "dropped"))
}
