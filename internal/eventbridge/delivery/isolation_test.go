package delivery

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// A receiver fails at each of 50 events, and takes another one: that one arrives, with the defaults
// of a subscriber. The others are attempted again until the receiver takes them, too.
func TestEventsThatFailDoNotKeepBackAnother(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order model.Order
		key   func(i int) string // of the i-th event that fails
	}{
		"none":             {model.OrderNone, func(int) string { return "" }},
		"group, one key":   {model.OrderGroup, func(int) string { return "bad" }},
		"group, many keys": {model.OrderGroup, func(i int) string { return fmt.Sprint("bad", i) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var takesAll atomic.Bool
			var mu sync.Mutex
			failed, taken := make(map[string]int), make(map[string]int)
			e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request, id string, _ int) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(id, "bad") && !takesAll.Load() {
					failed[id]++
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				taken[id]++
				w.WriteHeader(http.StatusNoContent)
			})
			got := func(ids ...string) bool {
				mu.Lock()
				defer mu.Unlock()
				return !slices.ContainsFunc(ids, func(id string) bool { return taken[id] == 0 })
			}
			s := model.NewSubscriber(busName, "s")
			s.Order = c.order
			s.Rules = newSubscriber("s", c.order).Rules
			s.Target = model.Target{Webhook: &model.Webhook{URL: e.URL, Mode: model.ModeBinary}}
			s.Fill()
			w := newFixture(t, 1, s)
			o := target.Options{Config: target.Config{}, Topics: w.topics, Log: zaptest.NewLogger(t)}
			o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			factory, err := target.NewFactory(o)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, factory.Close(context.Background())) })
			w.factory = factory
			w.processor(testConfig())
			bad := numbered("bad", 50)
			for i, id := range bad {
				w.send("s", c.key(i), id)
			}
			w.send("s", "good", "good")
			w.eventually("the good one arrives", func() bool { return got("good") })
			mu.Lock()
			assert.NotEmpty(t, failed, "others have failed")
			mu.Unlock()

			takesAll.Store(true)
			w.eventually("the others arrive, at a later attempt", func() bool { return got(bad...) })
			assert.Empty(t, w.deadLetters("s"))
			mu.Lock()
			defer mu.Unlock()
			for _, id := range bad {
				assert.Greater(t, len(e.attempts(id)), failed[id], id)
			}
		})
	}
}

// faults is a subscriber with the default options and shorter times.
func faults(order model.Order) model.Subscriber {
	s := model.NewSubscriber(busName, "s")
	s.Order = order
	s.Rules, s.Target = newSubscriber("s", order).Rules, model.Target{Log: &model.LogTarget{}}
	s.Fill()
	s.Delivery.Breaker.Probe = model.Duration(300 * time.Millisecond)
	for i := range s.Delivery.Retry.Schedule { // the list is this subscriber's own
		s.Delivery.Retry.Schedule[i] /= 100
	}
	return s
}

// Events for which a receiver gives no answer open the breaker. They delay others, but not for
// long: the breaker lets as many probes in as the subscriber has deliveries at once.
func TestEventsWithoutAnAnswerDelayOthersABit(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := faults(order)
			w := newFixture(t, 1, s)
			f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
				if strings.HasPrefix(d.Event.ID, "bad") {
					return unavailableResult()
				}
				return delivered()
			})
			w.processor(testConfig())
			for _, id := range numbered("bad", 50) {
				w.send("s", id, id)
			}
			w.send("s", "good", "good")
			w.gets(f, []string{"good"})
		})
	}
}

// Large events that fail, each with its own key, do not hold back another one where there are many
// subscribers, and each has a small part of prefetch_bytes.
func TestLargeEventsThatFailDoNotKeepBackAnother(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, faults(model.OrderGroup))
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		if d.Event.Type == "bad" {
			return retryResult()
		}
		return delivered()
	})
	cfg := testConfig()
	cfg.PrefetchBytes = 1 << 20
	p, _ := w.processor(cfg)
	p.part.Store(leastPart)
	publisher, err := w.client.Publisher(t.Context(), w.topics.Send(w.sub("s")), messaging.Business())
	require.NoError(t, err)
	for i := range 50 {
		key := fmt.Sprint("bad", i)
		text := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/test","type":"bad","partitionkey":%q,"data":%q}`, key, key, strings.Repeat("x", 15<<10))
		require.NoError(t, publisher.Publish(t.Context(), &messaging.Record{Key: key, Payload: []byte(text)}))
	}
	w.send("s", "good", "good")
	w.gets(f, []string{"good"})
}

// One event fails each request that holds it: its receiver fails, or the receiver's proxy gives up.
// The others of its batches are delivered, also if there are few attempts.
func TestOneEventDoesNotFailOthersOfItsBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts int
		failure  target.Result
	}{
		"500, two attempts": {2, retryResult()},
		"503, two attempts": {2, unavailableResult()},
		"503, six attempts": {6, unavailableResult()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := faults(model.OrderNone)
			s.Target = model.Target{Webhook: &model.Webhook{URL: "https://shop.example", Mode: model.ModeBatch}}
			s.Fill()
			s.Delivery.Retry.MaxAttempts = c.attempts
			w := newFixture(t, 1, s)
			f := w.target("s", nil)
			f.whole = func(batch []target.Delivery) target.Result {
				if slices.ContainsFunc(batch, func(d target.Delivery) bool { return d.Event.ID == "bad" }) {
					return c.failure
				}
				return delivered()
			}
			good := numbered("good", 19)
			w.send("s", "", append(good, "bad")...)
			w.processor(testConfig())
			w.gets(f, good)
			w.eventually("only the bad one is a dead letter", func() bool { return len(w.deadLetters("s")) == 1 })
		})
	}
}

// A delivery that waits for the rate is not made if the breaker opens meanwhile.
func TestADeliveryThatWaitsForTheRateMindsTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{limit: rate.NewLimiter(rate.Every(10*time.Second), 1), admitting: make(chan struct{}, 1)}
		w.breaker = newBreaker(model.Breaker{Failures: 1, Probe: model.Duration(time.Second)}, testProbes, new(states).changed)
		first, err := w.admit(t.Context(), 1)
		require.NoError(t, err)
		began, admitted := time.Now(), make(chan time.Duration, 1)
		go func() {
			if _, err := w.admit(t.Context(), 1); err == nil {
				admitted <- time.Since(began)
			}
		}()
		synctest.Wait()
		w.breaker.leave(first, asksToWait(time.Minute))
		assert.GreaterOrEqual(t, <-admitted, time.Minute)
	})
}

// A receiver takes one request in two seconds, and asks to wait a second after each other one. Most
// of the subscriber's rate is used, however many deliveries wait for it.
func TestRetryAfterWastesLittleOfTheRate(t *testing.T) {
	const concurrency, duration = 16, 320 * time.Second
	synctest.Test(t, func(t *testing.T) {
		w := &worker{limit: rate.NewLimiter(1, 1), admitting: make(chan struct{}, 1)}
		w.breaker = newBreaker(model.Breaker{Failures: 10, Probe: model.Duration(30 * time.Second)}, concurrency, new(states).changed)
		began := time.Now()
		var mu sync.Mutex
		var last time.Time
		taken := 0
		takes := func() bool {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(last) < 2*time.Second {
				return false
			}
			last = time.Now()
			taken++
			return true
		}
		var deliveries sync.WaitGroup
		for range concurrency {
			deliveries.Go(func() {
				for time.Since(began) < duration {
					p, err := w.admit(t.Context(), 1)
					switch {
					case err != nil:
						return
					case takes():
						w.breaker.leave(p, answered())
					default:
						w.breaker.leave(p, asksToWait(time.Second))
					}
				}
			})
		}
		deliveries.Wait()
		assert.Greater(t, taken, 80)
	})
}

// After 410 nothing is delivered, not even what waits for the rate.
func TestNothingIsAdmittedAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubscriber("s", model.OrderNone)
		s.Delivery.Rate = 0.1
		asked := make(chan struct{}, 10)
		w := testWorker(t, &s, asks(asked))
		ctx, stop := context.WithCancel(t.Context())
		w.interrupt = stop
		verdicts := make(chan error, 3)
		for range 3 {
			go func() {
				verdicts <- w.attempt(ctx, t.Context(), []*messaging.Delivery{{Payload: testEvent("e", "a", ""), Attempt: 1}})[0]
			}()
		}
		time.Sleep(time.Minute)
		for range 3 {
			require.ErrorIs(t, <-verdicts, errStopping)
		}
		assert.Len(t, asked, 1)
		assert.ErrorIs(t, w.isGone(), errDown)
	})
}

// asks is a target that notes each attempt, and takes no more events.
type asks chan struct{}

func (a asks) Deliver(context.Context, []target.Delivery) []target.Result {
	a <- struct{}{}
	return []target.Result{{Verdict: target.Gone, Err: errDown}}
}
func (asks) Close(context.Context) error { return nil }
