package ingest

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
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
	// tryAgain is how long after a failure a request may open the topic again.
	tryAgain = time.Second
	// logInterval is how often the log says that a topic accepts no records.
	logInterval = 10 * time.Second
	// closeTimeout bounds the closing of the topic of a deleted bus.
	closeTimeout = 10 * time.Second
)

// busTopics are the topics of buses. The first request for a bus opens its topic in the background.
// The topic is closed when the bus is deleted.
type busTopics struct {
	log         *zap.Logger
	why         func() error // why Pulsar cannot be reached; may be nil
	open        Open
	topics      model.Topics
	openTimeout time.Duration // how long requests wait for a topic to open
	gauge       interface{ Set(float64) }

	background context.Context
	cancel     context.CancelFunc
	retiring   sync.WaitGroup

	mu    sync.Mutex
	known map[string]*busTopic // by the bus' name
}

// busTopic is the topic of one bus.
type busTopic struct {
	topic     string
	created   time.Time    // of the bus: a bus that is made again has another topic
	until     time.Time    // until then, requests wait for the topic to open
	why       func() error // why Pulsar cannot be reached; may be nil
	stop      context.CancelFunc
	suspended *suspension.Suspension

	ready     chan struct{} // closed when it is open, or cannot be
	publisher Publisher     // once ready, nil if it cannot be opened
	fault     error
	ended     chan struct{} // closed when its goroutine has returned

	// busTopics.mu guards these.
	failed   time.Time // when it was found to accept no records, zero while it may
	loggedAt time.Time // when the log said so
	retired  bool
}

func newBusTopics(log *zap.Logger, topics model.Topics, openTimeout time.Duration, gauge interface{ Set(float64) }, why func() error, open Open) *busTopics {
	o := &busTopics{log: log, why: why, open: open, topics: topics, openTimeout: openTimeout, gauge: gauge, known: map[string]*busTopic{}}
	o.background, o.cancel = context.WithCancel(context.Background())
	return o
}

// of returns the topic of a bus, and opens it if necessary.
func (o *busTopics) of(bus *model.Bus) *busTopic {
	o.mu.Lock()
	defer o.mu.Unlock()
	var loggedAt time.Time
	if t := o.known[bus.Name]; t != nil {
		if t.usable(bus) {
			return t
		}
		loggedAt = t.loggedAt
		o.retire(bus.Name, t)
	}
	t := &busTopic{
		topic: o.topics.Events(bus.Name), created: bus.Created, until: time.Now().Add(o.openTimeout),
		why: o.why, loggedAt: loggedAt, suspended: suspension.New(o.why), ready: make(chan struct{}), ended: make(chan struct{}),
	}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(o.background)
	o.known[bus.Name] = t
	o.gauge.Set(float64(len(o.known)))
	go o.run(ctx, t)
	return t
}

// usable reports whether the topic is that of the bus, and need not be opened again. The caller
// holds busTopics.mu.
func (t *busTopic) usable(bus *model.Bus) bool {
	return t.created.Equal(bus.Created) && (t.failed.IsZero() || time.Since(t.failed) < tryAgain)
}

// run opens a topic and watches it until ctx ends.
func (o *busTopics) run(ctx context.Context, t *busTopic) {
	defer close(t.ended)
	p, err := o.open(ctx, t.topic)
	if err != nil {
		t.fault = err
		o.fail(t, err)
		close(t.ready)
		return
	}
	t.publisher = p
	close(t.ready)
	o.log.Info("topic is open", zap.String("topic", t.topic))
	_ = t.suspended.Run(ctx, o.log.With(zap.String("topic", t.topic)), p.Flush) // ctx has ended
}

// fail records that a topic accepts no records: the next request opens it again.
func (o *busTopics) fail(t *busTopic, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.failed.IsZero() && !t.retired {
		t.failed = time.Now()
		if o.background.Err() == nil && t.failed.Sub(t.loggedAt) >= logInterval {
			t.loggedAt = t.failed
			o.log.Error("a topic accepts no records", zap.String("topic", t.topic), zap.Error(err))
		}
	}
}

// noteOutcome looks for errors after which the topic accepts no further record.
func (o *busTopics) noteOutcome(t *busTopic, err error) {
	if errors.Is(err, messaging.ErrTopicTerminated) || errors.Is(err, messaging.ErrClosed) {
		o.fail(t, err)
	}
}

// closedError returns an error while the topic of a bus is known to accept no records: then the
// request need not be read. It opens no topic, because the sender may not be authenticated yet.
func (o *busTopics) closedError(bus *model.Bus) error {
	o.mu.Lock()
	t := o.known[bus.Name]
	usable := t != nil && t.usable(bus)
	o.mu.Unlock()
	if !usable {
		return nil // the topic will be opened
	}
	select {
	case <-t.ready:
		return t.open()
	default:
		return nil
	}
}

// open returns an error while the topic, which is ready, accepts no records.
func (t *busTopic) open() error {
	if t.fault != nil {
		return refusal.Unavailable("topic_unavailable", refusal.RetryUnavailable, "the bus' topic cannot be opened: %s", truncate.Text(t.fault.Error(), refusal.MaxReason))
	}
	return t.suspended.Refusal()
}

// waitOpen waits until the topic is open, no longer than the first request for it may wait.
func (t *busTopic) waitOpen(ctx context.Context) error {
	select {
	case <-t.ready:
	default:
		timer := time.NewTimer(time.Until(t.until))
		defer timer.Stop()
		select {
		case <-t.ready:
		case <-timer.C:
			return refusal.Unavailable("topic_unavailable", refusal.RetryUnavailable, "Pulsar is unavailable: %v", refusal.WithCause(errNotOpen, t.why))
		case <-ctx.Done():
			return refusal.ErrDisconnected
		}
	}
	return t.open()
}

var errNotOpen = errors.New("the bus' topic is not open yet")

// sweep closes the topics of deleted buses.
func (o *busTopics) sweep(now *store.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, t := range o.known {
		if bus := now.Bus(name); bus == nil || !bus.Created.Equal(t.created) {
			o.retire(name, t)
		}
	}
}

// retire closes a topic in the background. The caller holds o.mu.
func (o *busTopics) retire(name string, t *busTopic) {
	delete(o.known, name)
	o.gauge.Set(float64(len(o.known)))
	t.retired = true
	t.stop()
	o.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := t.close(ctx); err != nil {
			o.log.Warn("closed the topic of a bus with events that were not acknowledged", zap.String("topic", t.topic), zap.Error(err))
		}
	})
}

func (t *busTopic) close(ctx context.Context) error {
	<-t.ended
	if t.publisher == nil {
		return nil
	}
	return t.publisher.Close(ctx)
}

// check returns an error if there are topics, and none of them accepts records.
func (o *busTopics) check() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	for _, t := range o.known {
		err = t.suspended.Err()
		if err == nil && t.failed.IsZero() {
			return nil
		}
		if err == nil {
			err = errors.New("a topic accepts no records: " + t.topic)
		}
	}
	return err
}

// close flushes and closes all topics.
func (o *busTopics) close(ctx context.Context) error {
	o.cancel()
	o.mu.Lock()
	all := o.known
	o.known = map[string]*busTopic{}
	o.mu.Unlock()
	errs := make(chan error, len(all))
	for _, t := range all {
		go func() { errs <- t.close(ctx) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	o.retiring.Wait()
	return err
}
