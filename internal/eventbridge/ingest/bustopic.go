package ingest

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/httpserver/suspension"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Publisher is the part of *messaging.Publisher that is used here.
type Publisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// Open opens the publisher of a topic. It returns when the topic is open, or can never be, or ctx
// ends.
type Open func(ctx context.Context, topic string) (Publisher, error)

const (
	// openInterval is how long after a failure a topic is opened again.
	openInterval = time.Second
	// logInterval is how often the log says that a topic accepts no records.
	logInterval = 10 * time.Second
	// closeTimeout bounds the closing of a topic.
	closeTimeout = 10 * time.Second
)

// busTable has the buses that requests have named, and their topics.
type busTable struct {
	log         *zap.Logger
	registry    Registry
	topics      model.Topics
	openTimeout time.Duration // how long requests wait for a topic to open
	gauge       prometheus.Gauge
	why         func() error // why Pulsar cannot be reached; may be nil
	open        Open

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	closing context.Context // of closing topics; ends when close may not wait any longer
	abandon context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	known map[string]*busState // by the bus' name
}

func newBusTable(log *zap.Logger, registry Registry, topics model.Topics, openTimeout time.Duration, gauge prometheus.Gauge, why func() error, open Open) *busTable {
	o := &busTable{log: log, registry: registry, topics: topics, openTimeout: openTimeout, gauge: gauge, why: why, open: open, known: map[string]*busState{}}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.closing, o.abandon = context.WithCancel(context.Background())
	return o
}

// busTopic is the topic of one bus. The first request that publishes opens it in the background. It
// is closed when the bus is deleted.
type busTopic struct {
	bus       *model.Bus
	start     func() // opens the topic, once
	stop      context.CancelFunc
	openUntil time.Time              // until when requests wait for the topic to open
	suspended *suspension.Suspension // also until the topic is open
	opened    chan struct{}          // closed when the topic is open for the first time
	publisher atomic.Pointer[busPublisher]
}

// busPublisher is the publisher of a topic, until the topic accepts no further records.
type busPublisher struct {
	Publisher

	fail context.CancelCauseFunc
}

var errNotOpen = errors.New("the bus' topic is not open yet")

func (o *busTable) newTopic(bus *model.Bus) *busTopic {
	t := &busTopic{bus: bus, suspended: suspension.New(o.why), opened: make(chan struct{})}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(o.ctx)
	t.start = sync.OnceFunc(func() {
		t.openUntil = time.Now().Add(o.openTimeout)
		t.suspended.Begin(errNotOpen)
		o.running.Go(func() { o.run(ctx, t) })
	})
	return t
}

// isOf reports whether the topic is that of a bus. A bus that was deleted and created again is
// another one.
func (t *busTopic) isOf(bus *model.Bus) bool {
	return bus != nil && bus.Created.Equal(t.bus.Created)
}

// run keeps a topic open until ctx ends.
func (o *busTable) run(ctx context.Context, t *busTopic) {
	o.gauge.Inc()
	defer o.gauge.Dec()
	topic := o.topics.Events(t.bus.Name)
	log := o.log.With(zap.String("topic", topic))
	var logged time.Time
	for ctx.Err() == nil {
		// To open the topic of a deleted bus would create it again.
		if t.isOf(o.registry.Snapshot().Bus(t.bus.Name)) {
			err := o.openUntilLost(ctx, t, topic, log)
			if ctx.Err() == nil && time.Since(logged) >= logInterval {
				logged = time.Now()
				log.Error("a topic accepts no records", zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(openInterval):
		}
	}
}

// openUntilLost opens a topic, and lets requests publish to it until ctx ends or the topic accepts
// no further records. Then it closes the publisher, and returns why.
func (o *busTable) openUntilLost(ctx context.Context, t *busTopic, topic string, log *zap.Logger) error {
	p, err := o.open(ctx, topic)
	if err != nil {
		t.suspended.Begin(err)
		return err
	}
	log.Info("topic is open")
	err = t.use(ctx, p, log)
	t.suspended.Begin(err)
	closing, cancel := context.WithTimeout(o.closing, closeTimeout)
	defer cancel()
	if err := p.Close(closing); err != nil {
		log.Warn("closed a topic with events that were not acknowledged", zap.Error(err))
	}
	return err
}

// use lets requests publish until ctx ends or the topic accepts no further records. It returns why.
func (t *busTopic) use(ctx context.Context, p Publisher, log *zap.Logger) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	t.suspended.End() // before requests find the publisher
	if t.publisher.Swap(&busPublisher{p, fail}) == nil {
		close(t.opened)
	}
	if err := t.suspended.Run(ctx, log, p.Flush); ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// failIfClosed ends the use of the publisher if err says that it accepts no further records.
func (p *busPublisher) failIfClosed(err error) {
	if errors.Is(err, messaging.ErrTopicTerminated) || errors.Is(err, messaging.ErrClosed) {
		p.fail(err)
	}
}

// refusal returns an error while the topic is known to accept no records: then a request need not be
// read. It returns nil before the topic is opened, and as long as requests wait for that.
func (t *busTopic) refusal() error {
	switch {
	case t.suspended.Err() == nil:
		return nil
	case t.publisher.Load() != nil:
		return t.suspended.Refusal()
	case time.Now().Before(t.openUntil):
		return nil
	}
	return t.notOpen()
}

func (t *busTopic) notOpen() error {
	err := cmp.Or(t.suspended.Err(), errNotOpen)
	return refusal.Unavailable("topic_unavailable", refusal.RetryUnavailable, "Pulsar is unavailable: %s", truncate.Text(err.Error(), refusal.MaxReason))
}

// wait opens the topic if necessary, and returns the publisher. It waits no longer than the first
// request may wait.
func (t *busTopic) wait(ctx context.Context) (*busPublisher, error) {
	t.start()
	if t.publisher.Load() == nil {
		timer := time.NewTimer(time.Until(t.openUntil))
		defer timer.Stop()
		select {
		case <-t.opened:
		case <-timer.C:
			return nil, t.notOpen()
		case <-ctx.Done():
			return nil, refusal.ErrDisconnected
		}
	}
	return t.publisher.Load(), t.suspended.Refusal()
}

// check returns an error if topics were opened, and none of them accepts records.
func (o *busTable) check() (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.known {
		opened := b.topic.publisher.Load() != nil || b.topic.suspended.Err() != nil
		if refused := b.topic.refusal(); refused != nil {
			err = refused
		} else if opened {
			return nil
		}
	}
	return err
}

// close flushes and closes all topics. It returns the error of ctx if that ends before.
func (o *busTable) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, o.abandon)()
	defer o.abandon()
	o.cancel()
	o.running.Wait()
	return ctx.Err()
}
