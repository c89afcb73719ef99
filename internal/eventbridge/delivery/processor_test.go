package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
)

var errDown = errors.New("the target is down")

func retryResult() target.Result {
	return target.Result{Verdict: target.Retry, Err: errDown, Status: 500, Reason: target.ReasonStatus}
}

// unavailableResult is the result of a target that takes nothing at present.
func unavailableResult() target.Result {
	return target.Result{Verdict: target.Retry, Err: errDown, Status: 503, Reason: target.ReasonStatus, Unavailable: true}
}

func delivered() target.Result { return target.Result{Verdict: target.Delivered, Status: 200} }

func TestFailedDeliveriesAreTriedAgain(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup, model.OrderTotal} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			s.Delivery.Retry.MaxAttempts = 3
			w := newFixture(t, 1, s)
			var seen sync.Map
			f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
				n, _ := seen.LoadOrStore(d.Event.ID, new(atomic.Int64))
				attempt := n.(*atomic.Int64).Add(1)
				switch {
				case strings.HasPrefix(d.Event.ID, "never"):
					return retryResult()
				case strings.HasPrefix(d.Event.ID, "refused"):
					return target.Result{Verdict: target.Refused, Err: errors.New("400 Bad Request"), Status: 400}
				case attempt < 3:
					return retryResult()
				}
				return delivered()
			})
			p, _ := w.processor(testConfig())
			ids := numbered("ok", 8)
			w.send("s", "k", slices.Concat(ids[:4], []string{"never0", "refused0"}, ids[4:])...)
			w.gets(f, ids)
			w.eventually("two are dead letters", func() bool { return len(w.deadLetters("s")) == 2 })
			for _, deadLetter := range w.deadLetters("s") {
				if strings.Contains(string(deadLetter.Payload), "never0") {
					assert.Equal(t, "gave up after 3 attempts: the target is down", deadLetter.Reason)
					assert.Equal(t, 3, deadLetter.Attempt)
				} else {
					assert.Equal(t, "400 Bad Request", deadLetter.Reason)
					assert.Equal(t, 1, deadLetter.Attempt)
				}
			}
			assert.Len(t, f.attemptsAt("never0"), 3)
			if order.Ordered() {
				assert.Equal(t, ids, f.delivered(), "in their order")
			}
			outcomes := map[string]int{}
			for _, a := range p.Attempts(busName, "s") {
				outcomes[a.Outcome]++
				if a.Outcome == "retry" {
					assert.Equal(t, 500, a.Status)
					assert.Equal(t, errDown.Error(), a.Error)
					assert.GreaterOrEqual(t, a.Next.Sub(a.Time), 50*time.Millisecond)
					assert.False(t, a.Next.After(time.Now()), "it was made by now")
				}
			}
			assert.Equal(t, map[string]int{"delivered": 8, "retry": 18, "dead_letter": 2}, outcomes)
		})
	}
}

// A target that asks to wait gets no other event either until then.
func TestATargetSaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	w := newFixture(t, 1, s)
	const wait = 3 * time.Second
	var mu sync.Mutex
	var asked []time.Time
	f := w.target("s", func(context.Context, target.Delivery) target.Result {
		mu.Lock()
		defer mu.Unlock()
		if asked = append(asked, time.Now()); len(asked) == 1 {
			r := unavailableResult()
			r.RetryAfter = wait
			return r
		}
		return delivered()
	})
	p, _ := w.processor(testConfig())
	w.send("s", "", "first")
	w.eventually("it waits", func() bool { return p.Status(busName, "s").Breaker == BreakerOpen })
	ids := numbered("e", 20)
	w.send("s", "", ids...)
	w.gets(f, append(ids, "first"))
	mu.Lock()
	defer mu.Unlock()
	assert.GreaterOrEqual(t, asked[1].Sub(asked[0]), wait)
}

func TestATargetThatIsGoneDisablesItsSubscriber(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, 1, newSubscriber("s", order))
			gone := atomic.Bool{}
			gone.Store(true)
			f := w.target("s", func(context.Context, target.Delivery) target.Result {
				if gone.Load() {
					return target.Result{Verdict: target.Gone, Err: errors.New("410 Gone"), Status: 410}
				}
				return delivered()
			})
			p, _ := w.processor(testConfig())
			ids := numbered("e", 20)
			w.send("s", "k", ids...)
			w.eventually("it is disabled", func() bool { return w.sub("s").State == model.Disabled })
			assert.Equal(t, "410 Gone", w.sub("s").Reason)
			w.eventually("it stops", func() bool { return !p.Status(busName, "s").Delivering })
			asked := len(f.asked)
			assert.LessOrEqual(t, asked, 16)

			gone.Store(false)
			again := *w.sub("s")
			again.State, again.Reason = model.Active, ""
			w.put(again)
			w.gets(f, ids)
			assert.Empty(t, w.deadLetters("s"))
		})
	}
}

// While the breaker is open nothing is consumed but a probe, and what waits has no attempts
// counted.
func TestTheBreakerStopsDeliveries(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			const concurrency = 2
			s.Delivery.Concurrency = concurrency
			const probe = 200 * time.Millisecond
			s.Delivery.Breaker = model.Breaker{Failures: 4, Probe: model.Duration(probe)}
			w := newFixture(t, 1, s)
			down := atomic.Bool{}
			down.Store(true)
			var mu sync.Mutex
			var asked []time.Time
			f := w.target("s", func(context.Context, target.Delivery) target.Result {
				mu.Lock()
				asked = append(asked, time.Now())
				mu.Unlock()
				if down.Load() {
					return unavailableResult()
				}
				return delivered()
			})
			p, _ := w.processor(testConfig())
			ids := numbered("e", 60)
			w.send("s", "k", ids...)
			w.eventually("it opens", func() bool { return p.Status(busName, "s").Breaker == BreakerOpen })
			w.eventually("it is probed", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(asked) >= 4+1+2*concurrency
			})
			mu.Lock()
			// The first four, and one more that was under way. All others are probes.
			rounds := 1
			for i, at := range asked[1:] {
				if at.Sub(asked[i]) >= probe/2 {
					rounds++
				}
			}
			assert.LessOrEqual(t, len(asked), 4+1+(rounds-1)*concurrency)
			mu.Unlock()
			down.Store(false)
			w.gets(f, ids)
			assert.Empty(t, w.deadLetters("s"))
			assert.Equal(t, BreakerClosed, p.Status(busName, "s").Breaker)
			if order.Ordered() {
				assert.Equal(t, ids, f.delivered())
			}
		})
	}
}

// Attempts are made again in place, and hold up their key alone.
func TestTheOrderOfAKeyIsKept(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderGroup)
	s.Delivery.Breaker.Failures = 0
	s.Delivery.Retry.MaxAttempts = 10_000 // however long the one key is stuck
	w := newFixture(t, 2, s)
	stuck := atomic.Bool{}
	stuck.Store(true)
	seed := soak.Seed(t)
	var f *fakeTarget
	f = w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		if d.Event.PartitionKey == "stuck" && stuck.Load() || f.draw(seed, d.Event.ID, 3) == 0 {
			return retryResult()
		}
		return delivered()
	})
	w.processor(testConfig())
	w.processor(testConfig())
	w.send("s", "stuck", numbered("stuck-", 30)...)
	for key := range 6 {
		w.send("s", fmt.Sprint("k", key), numbered(fmt.Sprint("k", key, "-"), 30)...)
	}
	w.counts("the other keys go on", 180, func() int { return len(f.delivered()) })
	stuck.Store(false)
	w.counts("all are delivered", 210, func() int { return len(f.delivered()) })
	require.Len(t, f.delivered(), 210)
	next := map[string]int{}
	for _, id := range f.delivered() {
		key, number, _ := strings.Cut(id, "-")
		require.Equal(t, fmt.Sprint(next[key]), number, "of %s", key)
		next[key]++
	}
}

// What waits for the breaker, or the rate, when its partition goes to another processor is not
// delivered any more: the other one delivers it, and newer events.
func TestWhoLosesAPartitionDeliversNothingOldOfIt(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderGroup)
	s.Delivery.Breaker = model.Breaker{Failures: 1, Probe: model.Duration(2 * time.Second)}
	s.Delivery.Retry.MaxAttempts = 10_000
	w := newFixture(t, 4, s)
	var down atomic.Bool
	down.Store(true)
	var mu sync.Mutex
	var order []string
	answer := func(_ context.Context, d target.Delivery) target.Result {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, d.Event.ID)
		return delivered()
	}
	f := w.target("s", func(ctx context.Context, d target.Delivery) target.Result {
		if down.Load() {
			return unavailableResult()
		}
		return answer(ctx, d)
	})
	newest := func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		last := map[string]string{}
		for _, id := range order {
			key, number, _ := strings.Cut(id, "-")
			last[key] = number
		}
		return last
	}
	const keys = 12
	p, stop := w.processor(testConfig())
	for key := range keys {
		w.send("s", fmt.Sprint("k", key), fmt.Sprintf("k%d-0", key))
	}
	w.eventually("all wait for the breaker", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.asked) > 0 && p.Status(busName, "s").Breaker == BreakerOpen
	})
	w.target("s", answer)
	_, stopNext := w.processor(testConfig())
	for key := range keys {
		w.send("s", fmt.Sprint("k", key), fmt.Sprintf("k%d-1", key))
	}
	moved := func() (n int) {
		for _, number := range newest() {
			if number == "1" {
				n++
			}
		}
		return n
	}
	w.eventually("the other one delivers its partitions", func() bool { return moved() > 0 })
	down.Store(false)
	w.eventually("the breaker closes, and all is delivered", func() bool {
		return p.Status(busName, "s").Breaker == BreakerClosed && len(newest()) == keys
	})
	w.send("s", "end", "end-1") // which one delivers it does not matter
	w.eventually("nothing is left", func() bool { return newest()["end"] == "1" })
	stop()
	stopNext()
	for key, number := range newest() {
		assert.Equal(t, "1", number, "the last of %s, in %v", key, order)
	}
}

func TestBatchesOfAWebhook(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Target = model.Target{Webhook: &model.Webhook{
		URL: "https://example.com", Mode: model.ModeBatch, BatchEvents: 10, BatchLinger: model.Duration(100 * time.Millisecond),
	}}
	w := newFixture(t, 1, s)
	var failed sync.Map
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		if d.Event.ID == "bad" {
			return target.Result{Verdict: target.Refused, Err: errors.New("refused")}
		}
		if _, before := failed.LoadOrStore(d.Event.ID, true); !before && strings.HasSuffix(d.Event.ID, "3") {
			return retryResult()
		}
		return delivered()
	})
	w.processor(testConfig())
	ids := numbered("e", 100)
	w.send("s", "", append(ids, "bad")...)
	w.gets(f, ids)
	w.eventually("one is a dead letter", func() bool { return len(w.deadLetters("s")) == 1 })
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.LessOrEqual(t, slices.Max(f.sizes), 10)
	assert.Less(t, len(f.sizes), 40)
	for id, at := range f.asked {
		if !strings.HasSuffix(id, "3") {
			assert.Len(t, at, 1, id)
		}
	}
}

// The events of a batch that fails come again together.
func TestABatchThatFailsComesAgainAsOne(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Target = model.Target{Webhook: &model.Webhook{
		URL: "https://example.com", Mode: model.ModeBatch, BatchEvents: 100, BatchLinger: model.Duration(200 * time.Millisecond),
	}}
	s.Delivery.Retry.Schedule, s.Delivery.Retry.Jitter = []model.Duration{model.Duration(5 * time.Second)}, 1
	w := newFixture(t, 1, s)
	var failed sync.Map
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		if _, before := failed.LoadOrStore(d.Event.ID, true); !before {
			return retryResult()
		}
		return delivered()
	})
	ids := numbered("e", 100)
	w.send("s", "", ids...)
	w.processor(testConfig())
	w.gets(f, ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.LessOrEqual(t, len(f.sizes), 20, "requests")
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	p, _ := w.processor(testConfig())
	w.send("s", "", "one")
	w.gets(f, []string{"one"})
	paused := *w.sub("s")
	paused.State = model.Paused
	w.put(paused)
	w.eventually("it stops", func() bool { return !p.Status(busName, "s").Delivering })
	second := nextMillisecond()
	w.send("s", "", "two")
	w.eventually("only the second waits", func() bool { // the acknowledgement of the first is on its way
		b, err := p.Backlog(t.Context(), busName, "s")
		return err == nil && b.Events == 1 && !b.Oldest.Before(second)
	})
	assert.Len(t, f.delivered(), 1)
	paused.State = model.Active
	w.put(paused)
	w.gets(f, []string{"one", "two"})
}

// A subscriber whose target answers nothing delays no other.
func TestADeadSubscriberDelaysNoOther(t *testing.T) {
	t.Parallel()
	dead, well := newSubscriber("dead", model.OrderNone), newSubscriber("well", model.OrderNone)
	dead.Delivery.Breaker.Failures = 0
	w := newFixture(t, 1, dead, well)
	silent := w.target("dead", func(ctx context.Context, _ target.Delivery) target.Result {
		<-ctx.Done()
		return target.Result{Verdict: target.Retry, Reason: target.ReasonStopped, Err: ctx.Err()}
	})
	f := w.target("well", nil)
	cfg := testConfig()
	cfg.StopTimeout = time.Second // its target takes all of that
	p, _ := w.processor(cfg)
	w.send("dead", "", numbered("d", 500)...)
	w.eventually("it is busy", func() bool { return p.Status(busName, "dead").InFlight == 16 })
	w.send("well", "", "first")
	w.gets(f, []string{"first"})
	for i := range 20 {
		id := fmt.Sprint("w", i)
		w.send("well", "", id)
		w.eventually("it comes", func() bool { return len(f.attemptsAt(id)) > 0 })
	}
	assert.EqualValues(t, 16, p.Status(busName, "dead").InFlight, "all of its deliveries have waited meanwhile")
	assert.Empty(t, silent.delivered())
}

// What is delivered is what the transformation makes of the event. An event that it cannot be
// applied to is a dead letter.
func TestTransformations(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Transform = &model.Transform{Paths: map[string]string{"n": "/data/n"}, Template: `[{n},{n},{n},{n}]`}
	w := newFixture(t, 1, s)
	var bodies sync.Map
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		bodies.Store(d.Event.ID, string(d.Body)+" "+d.ContentType)
		return delivered()
	})
	w.processor(testConfig())
	p, err := w.client.Publisher(t.Context(), w.topics.Send(w.sub("s")), messaging.Business())
	require.NoError(t, err)
	for _, text := range []string{
		`{"specversion":"1.0","id":"good","source":"/test","type":"a","data":{"n":1}}`, `{"specversion":"1.0","id":"bad","source":"/test","type":"a","data":{"n":"` + strings.Repeat("x", 300<<10) + `"}}`,
	} {
		require.NoError(t, p.Publish(t.Context(), &messaging.Record{Payload: []byte(text), Properties: map[string]string{"hops": "3"}}))
	}
	w.gets(f, []string{"good"})
	body, _ := bodies.Load("good")
	assert.Equal(t, `[1,1,1,1] application/json`, body)
	w.eventually("one is a dead letter", func() bool { return len(w.deadLetters("s")) == 1 })
	assert.Contains(t, w.deadLetters("s")[0].Reason, "cannot transform")
}
