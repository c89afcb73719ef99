package messaging_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

// handed collects what was handed over.
type handed struct {
	mu       sync.Mutex
	payloads []string
	pending  []messaging.PendingDelivery
}

func (h *handed) over(_ context.Context, d *messaging.Delivery, u messaging.PendingDelivery) {
	h.mu.Lock()
	h.payloads = append(h.payloads, string(d.Payload))
	h.pending = append(h.pending, u)
	h.mu.Unlock()
}

func (h *handed) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.payloads)
}

// last is the payload that was handed over last, empty before.
func (h *handed) last() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.payloads) == 0 {
		return ""
	}
	return h.payloads[len(h.payloads)-1]
}

// take returns what was handed over since the last call.
func (h *handed) take() ([]string, []messaging.PendingDelivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, u := h.payloads, h.pending
	h.payloads, h.pending = nil, nil
	return p, u
}

func startAsync(t *testing.T, client *messaging.Client, cfg messaging.ConsumerConfig, h messaging.AsyncHandler) *running {
	t.Helper()
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- c.RunAsync(ctx, h) }()
	t.Cleanup(func() { cancel() })
	return r
}

func lateConfig(kind messaging.SubscriptionType, order messaging.Order) messaging.ConsumerConfig {
	cfg := consumerConfig(topic, kind)
	cfg.Order = order
	cfg.PrefetchMessages = 5000
	cfg.AckEvery = 10 * time.Millisecond
	return cfg
}

func TestThousandsAreHandedOverBeforeTheFirstVerdict(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, kind := range allTypes {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, 0)
			publish(t, client, topic, 3000, kind != messaging.KeyShared)
			cfg := consumerConfig(topic, kind)
			cfg.PrefetchMessages = 10_000
			if kind == messaging.Exclusive || kind == messaging.Failover {
				cfg.Order = messaging.OrderPartition
			}
			var h handed
			r := startAsync(t, client, cfg, h.over)
			eventually(t, "all are handed over", func() bool { return h.count() == 3000 })
			payloads, us := h.take()
			if cfg.Order == messaging.OrderPartition {
				for i, p := range payloads {
					require.Equal(t, strconv.Itoa(i), p)
				}
			}
			require.Equal(t, 3000, different(payloads))
			for _, u := range us { // in any order, from anywhere, and too often
				go func() {
					u.Complete(nil)
					u.Complete(errors.New("too late"))
				}()
			}
			r.stop(t)
			require.Zero(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog, "acknowledged when Run returns")
			require.Zero(t, h.count())
		})
	}
}

func different(payloads []string) int {
	seen := make(map[string]bool)
	for _, p := range payloads {
		seen[p] = true
	}
	return len(seen)
}

func TestPendingDeliveriesCountAgainstTheBounds(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	for i := range 500 {
		s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
	}
	cfg := lateConfig(messaging.Exclusive, messaging.OrderPartition)
	cfg.PrefetchMessages = 50
	var h handed
	r := startAsync(t, dial(t, s.URL()), cfg, h.over)
	next := 0
	for next < 500 {
		eventually(t, "more is handed over", func() bool { return h.count() >= min(50, 500-next) })
		require.Never(t, func() bool { return h.count() > 50+64 }, 20*time.Millisecond, 5*time.Millisecond)
		payloads, us := h.take()
		for i, u := range us {
			require.Equal(t, strconv.Itoa(next), payloads[i])
			next++
			u.Complete(nil)
		}
	}
	r.stop(t)
}

func TestLateErrorsAreVerdictsToo(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	for i := range 100 {
		s.Publish(topic, fakebroker.Message{Key: "k" + strconv.Itoa(i%7), Payload: []byte(strconv.Itoa(i))})
	}
	for _, order := range []messaging.Order{messaging.OrderPartition, messaging.OrderTotal, messaging.OrderKey} {
		t.Run(string(order), func(t *testing.T) {
			cfg := lateConfig(messaging.Exclusive, order)
			cfg.Subscription = "late_" + string(order)
			cfg.Retry.MaxAttempts = 4
			var inside [7]atomic.Int32
			var mu sync.Mutex
			attempts := make(map[string]int)
			done := make(map[string]bool)
			r := startAsync(t, dial(t, s.URL()), cfg, func(_ context.Context, d *messaging.Delivery, u messaging.PendingDelivery) {
				lane := &inside[0]
				if order == messaging.OrderKey {
					lane = &inside[d.Key[1]-'0']
				}
				if lane.Add(1) > 1 {
					panic("two of one order at once")
				}
				defer lane.Add(-1)
				i, _ := strconv.Atoi(string(d.Payload))
				mu.Lock()
				attempts[string(d.Payload)]++
				attempt := d.Attempt
				mu.Unlock()
				switch {
				case i%10 == 3: // for ever: to the dead letters after 4 attempts
					go u.Complete(errors.New("no"))
				case i%10 == 4:
					u.Complete(messaging.Reject(errors.New("never")))
				case i%10 == 5 && attempt < 3:
					u.Complete(errors.New("not yet"))
				case i%10 == 6 && attempt < 2:
					panic("oh")
				default:
					go func() {
						mu.Lock()
						done[string(d.Payload)] = true
						mu.Unlock()
						u.Complete(nil)
					}()
				}
			})
			dlq := topic + "-" + cfg.Subscription + "-DLQ"
			eventually(t, "all have their verdict", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(done) == 80 && s.Count(dlq) == 20
			})
			r.stop(t)
			for i := range 100 {
				want := map[int]int{3: 4, 5: 3, 6: 2}[i%10]
				require.Equal(t, max(want, 1), attempts[strconv.Itoa(i)], i)
			}
			// All is acknowledged: whoever comes next gets nothing.
			var h handed
			r = startAsync(t, dial(t, s.URL()), cfg, h.over)
			require.Never(t, func() bool { return h.count() > 0 }, 100*time.Millisecond, 10*time.Millisecond)
			r.stop(t)
		})
	}
}

func TestStopWaitsForVerdictsForAWhile(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	for i := range 20 {
		s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
	}
	cfg := lateConfig(messaging.Exclusive, messaging.OrderPartition)
	cfg.StopTimeout = 300 * time.Millisecond
	var h handed
	r := startAsync(t, client, cfg, h.over)
	eventually(t, "all are handed over", func() bool { return h.count() == 20 })
	_, us := h.take()
	began := time.Now()
	r.cancel()
	for _, u := range us[:10] {
		u.Complete(nil)
	}
	us[10].Complete(errors.New("not taken"))
	r.stop(t)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	for _, u := range us {
		u.Complete(nil) // too late
	}

	cfg.StopTimeout = time.Hour // Run returns with the last verdict
	r = startAsync(t, client, cfg, h.over)
	eventually(t, "the rest comes again", func() bool { return h.count() == 10 })
	payloads, us := h.take()
	require.Equal(t, "10", payloads[0])
	r.cancel()
	for _, u := range us {
		u.Complete(nil)
	}
	r.stop(t)
}

// The goroutine that receives may see the stop before the one that runs it does.
func TestNothingIsVoidWhenTheRunStops(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	const perRun = 10
	for i := range 50 {
		for range perRun {
			s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
		}
		var h handed
		r := startAsync(t, client, lateConfig(messaging.Exclusive, messaging.OrderPartition), h.over)
		eventually(t, "all are handed over", func() bool { return h.count() == perRun })
		_, us := h.take()
		r.cancel()
		time.Sleep(200 * time.Microsecond) // somewhere in the middle of stopping
		for _, u := range us {
			u.Complete(nil)
		}
		r.stop(t)
		require.Zero(t, s.Backlog(topic, "sub"), "run %d", i)
	}
}

// Of an attempt that a session's end overtakes, the failure is known only when the next session has
// the message already.
func TestFailureKnownAfterASessionsEndDoesNotBlockItsKey(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	cfg := quickConfig(messaging.Exclusive, messaging.OrderKey)
	cfg.Concurrency = 1
	cfg.Retry.MinDelay, cfg.Retry.MaxDelay = 300*time.Millisecond, 300*time.Millisecond
	var got payloads
	var failed atomic.Bool
	release := make(chan struct{})
	s.Publish(topic, fakebroker.Message{Key: "b", Payload: []byte("first")})
	r := startAsync(t, client, cfg, func(_ context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
		got.add(d)
		switch {
		case string(d.Payload) == "a0" && failed.CompareAndSwap(false, true):
			<-release
			p.Complete(errors.New("down"))
			return
		case string(d.Payload) == "b0": // the only worker is here until the failure is known
			assert.Eventually(t, func() bool { return handledAs(t, reg, "retry") == 1 }, await.Patience, time.Millisecond)
		}
		p.Complete(nil)
	})
	// The client has subscribed: it gives up with a data race before (see consume_norace_test.go).
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("a0")})
	eventually(t, "it is handed over", func() bool { return len(got.list()) == 2 })
	refused := s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
	s.CutConnections()
	require.NoError(t, refused.Wait(testContext(t), 1))
	s.Publish(topic, fakebroker.Message{Key: "b", Payload: []byte("b0")})
	s.Publish(topic, fakebroker.Message{Key: "a", Payload: []byte("a1")})
	eventually(t, "the next session has all", func() bool { return received(t, reg) == 5 })
	close(release)
	eventually(t, "all is acknowledged", func() bool { return s.Acked(topic, "sub") == 4 })
	r.stop(t)
	require.Equal(t, []string{"first", "a0", "b0", "a0", "a1"}, got.list())
}

func TestVerdictsOfAnEndedSessionHaveNoEffect(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	for i := range 200 {
		s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
	}
	cfg := lateConfig(messaging.Exclusive, messaging.OrderPartition)
	var h handed
	r := startAsync(t, dial(t, s.URL()), cfg, h.over)
	eventually(t, "all are handed over", func() bool { return h.count() == 200 })
	_, void := h.take()
	// A reconnect that the client makes by itself keeps the session: nothing is
	// handed over twice, and verdicts still count.
	s.CutConnections()
	require.Never(t, func() bool { return h.count() > 0 }, 500*time.Millisecond, 10*time.Millisecond)
	for _, u := range void[:50] {
		u.Complete(nil)
	}
	// The broker refuses the consumer on reconnecting: the session ends.
	busy := s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
	s.CutConnections()
	require.NoError(t, busy.Wait(testContext(t), 1))
	// Whatever was not acknowledged in time: 150, or more of the first 50.
	eventually(t, "the rest comes again", func() bool { return h.last() == "199" })
	for _, u := range void {
		u.Complete(errors.New("void"))
	}
	payloads, us := h.take()
	require.LessOrEqual(t, len(payloads), 200)
	require.GreaterOrEqual(t, len(payloads), 150)
	for _, u := range us {
		u.Complete(nil)
	}
	r.stop(t)
	require.Zero(t, h.count())
}

// A partition whose AsyncHandler blocks keeps back its own messages only.
func TestBlockedPartitionLeavesTheOthers(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	for i := range 100 {
		s.Publish(topic+"-partition-"+strconv.Itoa(i%2), fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
	}
	release := make(chan struct{})
	var h handed
	r := startAsync(t, dial(t, s.URL()), lateConfig(messaging.Exclusive, messaging.OrderPartition),
		func(ctx context.Context, d *messaging.Delivery, u messaging.PendingDelivery) {
			if d.Partition == 1 {
				<-release
			}
			h.over(ctx, d, u)
			u.Complete(nil)
		})
	eventually(t, "partition 0 is through", func() bool { return h.count() == 50 })
	close(release)
	eventually(t, "partition 1 is through", func() bool { return h.count() == 100 })
	r.stop(t)
}
