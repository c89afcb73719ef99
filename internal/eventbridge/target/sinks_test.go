package target

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/health"
)

// shelf is a sink that keeps outcomes back while held is set.
type shelf struct {
	mu       sync.Mutex
	hold     bool
	held     []func(error)
	outcomes map[string]error // by value
	values   []string
}

func (s *shelf) Send(_ context.Context, _ string, m *message.Message, done func(error)) {
	s.mu.Lock()
	s.values = append(s.values, string(m.Value))
	if s.hold {
		s.held = append(s.held, done)
		s.mu.Unlock()
		return
	}
	err := s.outcomes[string(m.Value)]
	s.mu.Unlock()
	go done(err)
}

func (s *shelf) answer(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, done := range s.held {
		done(err)
	}
	s.held, s.hold = nil, false
}

func newSharedSink(s pipeline.Sink) *sharedSink {
	shared := &sharedSink{health: health.New(zap.NewNop())}
	shared.current.Store(&s)
	return shared
}

// frail is a sink whose Run fails so often before it works, as one does whose files cannot be read.
type frail struct {
	shelf
	failures *atomic.Int64
}

func (f *frail) Run(ctx context.Context) error {
	if f.failures.Add(-1) >= 0 {
		return errors.New("no such file")
	}
	<-ctx.Done()
	return nil
}

// Send of one that does not run has no other outcome, as that of Pulsar.
func (f *frail) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	if f.failures.Load() >= 0 {
		done(errors.New("the sink has stopped"))
		return
	}
	f.shelf.Send(ctx, to, m, done)
}

// TestSinksThatEndAreMadeAgain: a sink may end for a reason that does not last. Its subscribers
// must not wait for a restart of the process.
func TestSinksThatEndAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := NewFactory(Options{Config: Config{}})
		require.NoError(t, err)
		var failures atomic.Int64
		failures.Store(3)
		shared, err := f.acquire(sinkKey{"pulsar", "main", ""}, func(connector.Options) runner { return &frail{failures: &failures} })
		require.NoError(t, err)
		target := onSink(shared)
		synctest.Wait()
		result := target.Deliver(t.Context(), bodies("a"))[0]
		assert.Equal(t, Retry, result.Verdict)
		require.ErrorContains(t, result.Err, "the sink has stopped: no such file")
		time.Sleep(time.Minute)
		assert.Equal(t, Delivered, target.Deliver(t.Context(), bodies("b"))[0].Verdict)
		require.NoError(t, target.Close(t.Context()))
		assert.Empty(t, f.sinks)

		failures.Store(1_000_000) // one that never works ends, too
		shared, err = f.acquire(sinkKey{"pulsar", "main", ""}, func(connector.Options) runner { return &frail{failures: &failures} })
		require.NoError(t, err)
		time.Sleep(time.Hour)
		assert.Less(t, 1_000_000-failures.Load(), int64(200))
		shared.release(t.Context())
	})
}

// onShelf is a target whose sink is s.
func onShelf(s pipeline.Sink) *sinkTarget { return onSink(newSharedSink(s)) }

func onSink(s *sharedSink) *sinkTarget {
	return &sinkTarget{sink: s, timeout: time.Second, inFlight: semaphore.NewWeighted(pendingBytes),
		encode: func(d *Delivery) (string, *message.Message, error) { return "", &message.Message{Value: d.Body}, nil }}
}

func bodies(texts ...string) []Delivery {
	batch := make([]Delivery, len(texts))
	for i, text := range texts {
		batch[i].Body = []byte(text)
	}
	return batch
}

func TestOutcomesOfSinks(t *testing.T) {
	s := &shelf{outcomes: map[string]error{
		"large":   pipeline.Refuse("too_large", errors.New("it is too large")),
		"nowhere": pipeline.Refuse("unroutable", errors.New("no queue takes it")),
		"lost":    errors.New("the connection broke"),
	}}
	results := onShelf(s).Deliver(context.Background(), bodies("a", "large", "b", "nowhere", "lost", "c"))
	assert.Equal(t, []string{"a", "large", "b", "nowhere", "lost", "c"}, s.values)
	for i, want := range []Result{
		{Verdict: Delivered}, {Verdict: Refused, Reason: "too_large"}, {Verdict: Delivered}, {Verdict: Retry, Reason: "unroutable", Unavailable: true},
		{Verdict: Retry, Reason: ReasonConnection, Unavailable: true}, {Verdict: Delivered},
	} {
		assert.Equal(t, want.Unavailable, results[i].Unavailable, i)
		assert.Equal(t, want.Verdict, results[i].Verdict, i)
		assert.Equal(t, want.Reason, results[i].Reason, i)
		assert.Equal(t, want.Verdict == Delivered, results[i].Err == nil, i)
	}
}

// TestUnroutableEvents: the event is refused if its type is the routing key. If the subscriber's
// own key leads nowhere, the destination is unavailable.
func TestUnroutableEvents(t *testing.T) {
	h := newHarness(t, func(o *Options) {
		c := RabbitMQ{}
		c.SetDefaults()
		c.URL = "amqp://127.0.0.1:1"
		o.Connections.RabbitMQ = map[string]RabbitMQ{"main": c}
	})
	for key, want := range map[string]Result{
		"":       {Verdict: Refused, Reason: "unroutable"},
		"orders": {Verdict: Retry, Reason: "unroutable", Unavailable: true},
	} {
		target := h.target(&model.Subscriber{Target: model.Target{RabbitMQ: &model.RabbitMQTarget{Connection: "main", Exchange: "e", RoutingKey: key}}})
		result := target.(*sinkTarget).result(t.Context(), pipeline.Refuse("unroutable", errors.New("no queue takes it")))
		require.Error(t, result.Err)
		result.Err = nil
		assert.Equal(t, want, result)
	}
}

// TestWhatIsOnItsWayIsBounded: a sink keeps what it was given while its system is unavailable, so a
// subscriber's attempts must not add up.
func TestWhatIsOnItsWayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{hold: true}
		target := onShelf(s)
		unavailable := errors.New("the broker is unavailable")
		target.sink.health.Set(unavailable)
		var texts []string
		for i := range 700 {
			texts = append(texts, fmt.Sprint(i))
		}
		count := func(results []Result) map[string]int {
			reasons := map[string]int{}
			for _, r := range results {
				require.Equal(t, Retry, r.Verdict)
				require.ErrorIs(t, r.Err, unavailable)
				require.True(t, r.Unavailable)
				reasons[r.Reason]++
			}
			return reasons
		}
		began := time.Now()
		require.Equal(t, map[string]int{ReasonTimeout: 700}, count(target.Deliver(context.Background(), bodies(texts...))))
		require.Equal(t, map[string]int{ReasonTimeout: 300, ReasonBusy: 400}, count(target.Deliver(context.Background(), bodies(texts...))))
		require.Equal(t, map[string]int{ReasonBusy: 700}, count(target.Deliver(context.Background(), bodies(texts...))))
		assert.Equal(t, 3*time.Second, time.Since(began))
		assert.Len(t, s.values, 1000)

		// Late outcomes make room again, and nobody waits for them.
		target.sink.health.Set(nil)
		s.answer(nil)
		for _, r := range target.Deliver(context.Background(), bodies(texts...)) {
			require.Equal(t, Delivered, r.Verdict)
		}

		// One that is larger than all that is allowed goes alone.
		require.Equal(t, Delivered, target.Deliver(context.Background(), []Delivery{{Body: make([]byte, 2*pendingBytes)}})[0].Verdict)

		// The caller may give up earlier.
		s.hold = true
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Millisecond, cancel)
		stopped := target.Deliver(ctx, bodies("x"))[0]
		require.Equal(t, ReasonStopped, stopped.Reason)
		require.False(t, stopped.Unavailable)
		s.answer(errors.New("late"))
	})
}
