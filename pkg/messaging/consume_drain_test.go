package messaging_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// The broker ends the session when all has been delivered and nothing is handled yet.
func TestDrainWaitsForWhatASessionsEndDropped(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	publishNumbers(s, "k", 10)
	c, err := client.Consumer(quickConfig(messaging.Exclusive, messaging.OrderTotal))
	require.NoError(t, err)
	release, entered := make(chan struct{}), make(chan struct{}, 2)
	var got payloads
	ended := make(chan error, 1)
	go func() {
		_, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
			if string(d.Payload) == "0" {
				entered <- struct{}{}
				<-release
			}
			got.add(d)
			return nil
		})
		ended <- err
	}()
	<-entered
	eventually(t, "all are here", func() bool { return received(t, reg) == 10 })
	// The underlying client's own attempt is refused, and so are two of the next session's.
	refused := s.FailSubscribe(topic, fakebroker.ConsumerBusy, 3)
	s.CutConnections()
	require.NoError(t, refused.Wait(testContext(t), 2))
	close(release)
	require.NoError(t, <-ended)
	require.Zero(t, s.Backlog(topic, "sub"))
	require.Subset(t, got.list(), numbered(10))
	require.Equal(t, "9", got.list()[len(got.list())-1])
}

// The broker refuses the next session for longer than DrainIdle.
func TestDrainWaitsWhileItCannotSubscribe(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	publishNumbers(s, "k", 10)
	cfg := quickConfig(messaging.Exclusive, messaging.OrderTotal)
	cfg.DrainIdle = time.Second // less than five attempts take, and more than a first message
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	release, entered := make(chan struct{}), make(chan struct{}, 2)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
			if string(d.Payload) == "0" {
				entered <- struct{}{}
				<-release
			}
			return nil
		})
		ended <- err
	}()
	<-entered
	eventually(t, "all are here", func() bool { return received(t, reg) == 10 })
	refused := s.FailSubscribe(topic, fakebroker.ConsumerBusy, 5)
	s.CutConnections()
	require.NoError(t, refused.Wait(testContext(t), 2), "the session has ended")
	close(release)
	require.NoError(t, <-ended)
	require.Zero(t, s.Backlog(topic, "sub"), "what the session dropped is handled")
	require.Equal(t, 5, refused.Hits())
}
