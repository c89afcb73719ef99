//go:build !race

package messaging_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// What makes the client underneath give up a consumer.
//
// A consumer that gives up soon after it has subscribed races with Subscribe in pulsar-client-go
// v0.21.0 (consumer_impl.go, a closure of closeWithCause against newInternalConsumer). Closures are
// watched by the race detector, see docs/adr/0025-race-detector.md.

func TestExclusiveOwnsAllPartitionsForItsSession(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	s.CreateTopic(topic, 3)
	var o owner
	r := startOwner(t, client, quickConfig(messaging.Exclusive, messaging.OrderPartition), &o)
	eventually(t, "all partitions", func() bool { return slices.Equal(o.partitions(), []int{0, 1, 2}) })
	s.FailSubscribe(topic+"-partition-0", fakebroker.ConsumerBusy, 1)
	s.CloseConsumers(topic)
	eventually(t, "the session's end is a loss, the next session a gain", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.gained >= 6 && len(o.lost) >= 3 && len(o.owned) == 3
	})
	r.stop(t)
	require.Empty(t, o.partitions())
}

func TestHangingHandlerStopsOnlyItsKeyWhenTheBrokerEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Shared, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			s.Publish(topic, fakebroker.Message{Key: "hang", Payload: []byte("hang")})
			var others payloads
			var hanging atomic.Bool
			release, entered := make(chan struct{}), make(chan struct{})
			r := start(t, client, quickConfig(kind, ""), func(_ context.Context, d *messaging.Delivery) error {
				if string(d.Payload) == "hang" {
					if hanging.CompareAndSwap(false, true) {
						close(entered)
						<-release
					}
					return nil
				}
				others.add(d)
				return nil
			})
			<-entered
			s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
			s.CloseConsumers(topic)
			for i := range 10 {
				s.Publish(topic, fakebroker.Message{Key: "k" + strconv.Itoa(i), Payload: []byte(strconv.Itoa(i))})
			}
			eventually(t, "other keys go on", func() bool { return len(others.list()) == 10 })
			close(release)
			eventually(t, "all is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
			r.stop(t)
		})
	}
}

func TestSessionEndKeepsDelayAndAttempts(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("first")}, fakebroker.Message{Key: "k", Payload: []byte("behind")})
			var mu sync.Mutex
			var attempts []int
			var got payloads
			began := time.Now()
			var again time.Duration
			r := start(t, client, quickConfig(kind, ""), func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				if string(d.Payload) != "first" {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				attempts = append(attempts, d.Attempt)
				if len(attempts) == 1 {
					return messaging.RetryAfter(errors.New("unavailable"), 2*time.Second)
				}
				again = time.Since(began)
				return nil
			})
			eventually(t, "the first attempt fails", func() bool { return len(got.list()) == 1 })
			subscribed := s.Received(fakebroker.CommandSubscribe)
			s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
			s.CloseConsumers(topic)
			require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandSubscribe, subscribed+2))
			eventually(t, "both are handled", func() bool { return len(got.list()) == 3 })
			r.stop(t)
			require.Equal(t, []int{1, 2}, attempts)
			require.GreaterOrEqual(t, again, 2*time.Second, "not before its time")
			require.Equal(t, []string{"first", "first", "behind"}, got.list(), "what is behind it waits")
		})
	}
}
