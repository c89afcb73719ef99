package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// What becomes of a Failover partition's messages when the partition goes to another consumer.

// received is how many messages the subscription sub has received.
func received(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	return counted(t, reg, "aviary_messaging_received_messages_total", "sub")
}

// steps collects what two consumers of one subscription did, in order.
type steps struct {
	mu  sync.Mutex
	all []string
}

func (s *steps) add(consumer string, d *messaging.Delivery) {
	s.mu.Lock()
	s.all = append(s.all, consumer+string(d.Payload))
	s.mu.Unlock()
}

func (s *steps) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.all...)
}

// handover starts a second consumer, which gets the partition and handles all that is left.
func handover(t *testing.T, s *fakebroker.Server, cfg messaging.ConsumerConfig, h messaging.Handler) *running {
	t.Helper()
	r := start(t, dial(t, s.URL()), cfg, h)
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
	require.Equal(t, 1, s.ChangeActive(topic, "sub"))
	eventually(t, "the second has handled all", func() bool { return s.Backlog(topic, "sub") == 0 })
	return r
}

func TestPartitionThatWasLostGetsNoFurtherAttempt(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	cfg := quickConfig(messaging.Failover, messaging.OrderKey)
	publishNumbers(s, "k", 3)
	var done steps
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	first := start(t, dial(t, s.URL()), cfg, func(_ context.Context, d *messaging.Delivery) error {
		done.add("first ", d)
		if d.Attempt == 1 {
			entered <- struct{}{}
			<-release
			return errors.New("down")
		}
		return nil
	})
	<-entered
	second := handover(t, s, cfg, func(_ context.Context, d *messaging.Delivery) error {
		done.add("second ", d)
		return nil
	})
	close(release)
	want := []string{"first 0", "second 0", "second 1", "second 2"}
	require.Never(t, func() bool { return len(done.list()) > len(want) }, 200*time.Millisecond, 5*time.Millisecond)
	first.stop(t)
	second.stop(t)
	require.Equal(t, want, done.list(), "the last is the newest")
}

func TestNothingIsStartedAfterThePartitionWasLost(t *testing.T) {
	t.Parallel()
	for _, order := range []messaging.Order{messaging.OrderKey, messaging.OrderPartition, messaging.OrderTotal} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			reg := prometheus.NewRegistry()
			cfg := quickConfig(messaging.Failover, order)
			cfg.Concurrency = 1 // the worker keeps what it has taken along
			publishNumbers(s, "k", 20)
			var done steps
			release := map[string]chan struct{}{"0": make(chan struct{}), "1": make(chan struct{})}
			entered := make(chan string, 20)
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			first := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("first ", d)
				entered <- string(d.Payload)
				if wait := release[string(d.Payload)]; wait != nil {
					<-wait
				}
				return nil
			})
			require.Equal(t, "0", <-entered)
			eventually(t, "all are here", func() bool { return received(t, reg) == 20 })
			close(release["0"])
			require.Equal(t, "1", <-entered, "others may have been taken along with it")
			second := handover(t, s, cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("second ", d)
				return nil
			})
			all := len(done.list())
			close(release["1"])
			require.Never(t, func() bool { return len(done.list()) > all }, 200*time.Millisecond, 5*time.Millisecond)
			first.stop(t)
			second.stop(t)
			require.Equal(t, []string{"first 0", "first 1"}, done.list()[:2])
			require.Equal(t, "second 19", done.list()[all-1])
		})
	}
}

// A consumer that is cut off is not told that another one has its partition meanwhile.
func TestFailoverReconnectCountsAsALoss(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	one, err := messaging.Dial(testContext(t), messaging.Config{
		URL: s.URL(), OperationTimeout: await.Patience, Auth: messaging.Auth{Token: secret.String("one")},
	}, messaging.WithRegisterer(reg))
	require.NoError(t, err)
	t.Cleanup(func() { _ = one.Close(testContext(t)) })
	cfg := quickConfig(messaging.Failover, messaging.OrderKey)
	publishNumbers(s, "k", 3)
	var done steps
	release, entered := make(chan struct{}), make(chan struct{})
	first := start(t, one, cfg, func(_ context.Context, d *messaging.Delivery) error {
		if string(d.Payload) == "0" {
			close(entered)
			<-release
		}
		done.add("first ", d)
		return nil
	})
	<-entered
	eventually(t, "all are here", func() bool { return received(t, reg) == 3 })
	s.Isolate("one")
	second := start(t, dial(t, s.URL()), cfg, func(_ context.Context, d *messaging.Delivery) error {
		done.add("second ", d)
		return nil
	})
	s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("3")})
	eventually(t, "the second has handled all", func() bool { return s.Backlog(topic, "sub") == 0 })
	second.stop(t)
	s.Admit("one")
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 1))
	s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("4")})
	eventually(t, "the first has the partition again", func() bool { return received(t, reg) == 4 })
	close(release)
	eventually(t, "all is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
	first.stop(t)
	require.Equal(t, []string{"second 0", "second 1", "second 2", "second 3", "first 0", "first 4"}, done.list(),
		"0 was running; 1 and 2 had not been started")
}

// After a reconnect a message is delivered again while its first delivery is still handled. Both
// fail: both count.
func TestAttemptsOfBothDeliveriesCount(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	cfg := quickConfig(messaging.Failover, messaging.OrderNone)
	cfg.Concurrency, cfg.Retry.MinDelay, cfg.Retry.MaxDelay = 2, time.Millisecond, time.Millisecond
	s.Publish(topic, fakebroker.Message{Payload: []byte("fails")})
	type attempt struct {
		number int
		fail   chan struct{}
	}
	attempts, other := make(chan attempt, 3), make(chan struct{}, 1)
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		if string(d.Payload) == "other" {
			other <- struct{}{}
			return nil
		}
		now := attempt{d.Attempt, make(chan struct{})}
		attempts <- now
		if now.number > 2 {
			return nil
		}
		<-now.fail
		return errors.New("it fails")
	})
	first := <-attempts
	s.CutConnections()
	second := <-attempts
	require.Equal(t, []int{1, 1}, []int{first.number, second.number})
	close(first.fail)
	s.Publish(topic, fakebroker.Message{Payload: []byte("other")})
	<-other // by the first one's worker
	close(second.fail)
	require.Equal(t, 3, (<-attempts).number)
	eventually(t, "all is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
	r.stop(t)
}

// Another consumer acknowledges the beginning of the last batch, and the partition comes back.
func TestRestOfABatchIsHandledWhenThePartitionComesBack(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprint("batch index here ", own), func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			var batch []fakebroker.Message
			for _, n := range numbered(3) {
				batch = append(batch, fakebroker.Message{Key: "k", Payload: []byte(n)})
			}
			s.PublishBatch(topic, fakebroker.None, batch...)
			cfg := quickConfig(messaging.Failover, messaging.OrderKey)
			cfg.AckBatchIndex = own
			reg := prometheus.NewRegistry()
			var done steps
			releaseFirst, releaseSecond, entered := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
			first := start(t, dial(t, s.URL(), messaging.WithRegisterer(reg)), cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("first ", d)
				if string(d.Payload) == "0" {
					entered <- struct{}{}
					<-releaseFirst
				}
				return nil
			})
			<-entered
			eventually(t, "all are here", func() bool { return received(t, reg) == 3 })
			cfg.AckBatchIndex = true
			second := start(t, dial(t, s.URL()), cfg, func(_ context.Context, d *messaging.Delivery) error {
				done.add("second ", d)
				if string(d.Payload) == "1" {
					<-releaseSecond
				}
				return nil
			})
			require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 2))
			require.Equal(t, 1, s.ChangeActive(topic, "sub"))
			eventually(t, "the second has handled 0", func() bool { return s.Backlog(topic, "sub") == 2 })
			require.Equal(t, 1, s.ChangeActive(topic, "sub"))
			close(releaseFirst)
			eventually(t, "the rest of the batch came to the first again", func() bool { return received(t, reg) >= 5 })
			close(releaseSecond) // its partition is another's: the rest is not started there
			s.Publish(topic, fakebroker.Message{Key: "k", Payload: []byte("3")})
			eventually(t, "all is acknowledged", func() bool { return s.Backlog(topic, "sub") == 0 })
			first.stop(t)
			second.stop(t)
			handled := strings.Join(done.list(), ",")
			require.Regexp(t, "(first|second) 2", handled, "never handled, and acknowledged")
			if own {
				require.Contains(t, handled, "first 1,first 2,first 3")
			}
		})
	}
}
