package consume

import (
	"context"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// The run stops, or the session ends, while OnOwned's f still loads.
func TestNothingIsTakenBeforeOnOwnedReturns(t *testing.T) {
	p, c := newTestPartition(true)
	s := p.session
	release := make(chan struct{})
	defer close(release)
	s.owned.f, s.owned.parent = func(context.Context, string, int) { <-release }, context.Background()
	s.owned.gain("t", 0)
	ctx, stop := context.WithCancel(context.Background())
	r := &run{stop: ctx}
	r.metrics.redelivered = prometheus.NewCounter(prometheus.CounterOpts{})
	s.tasks = spareTasks{pool: &r.tasks}
	m := &feedingMessage{id: stored(1, 0, 1).id, topic: "t"}
	s.arrivals.note(m)
	stop()
	batch := r.take(s, &pulsar.ConsumerMessage{Consumer: c, Message: m}, nil)
	require.Empty(t, batch, "f has not returned")
}

type panickingError struct{ cause error }

func (e *panickingError) Error() string { return "failed" }
func (e *panickingError) Unwrap() error { return e.cause } // panics for a typed nil

// The verdict is looked at while RunAsync stops.
func TestVerdictWhoseMethodsPanicWhileStopping(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	r := &run{
		stop: ctx, log: zap.NewNop(), metrics: newMetrics(prometheus.NewRegistry()).of("sub"),
		completions: &completionQueue{wake: make(chan struct{}, 1)},
	}
	r.sched = schedule.New(schedule.Config{Workers: 1, MaxCount: 10, MaxBytes: 10, Async: true})
	d := &task{Delivery: &record.Delivery{}, verdict: (*panickingError)(nil)}
	d.Owner, d.Group = d, new(schedule.Group)
	r.sched.Push([]*schedule.Item{&d.Item})
	r.completions.add(d)
	ended := make(chan struct{})
	close(ended)
	require.NotPanics(t, func() { r.runCompletions(ended) })
}
