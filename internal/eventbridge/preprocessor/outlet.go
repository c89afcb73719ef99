package preprocessor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Publisher is what is needed of *messaging.Publisher.
type Publisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// Open opens the publisher of a topic. It returns when the topic is open, or can never be, or ctx ends.
type Open func(ctx context.Context, topic string) (Publisher, error)

const (
	// tryAgain is when a topic that could not be opened is opened again.
	tryAgain = time.Second
	// complainEvery is how often the log says of a topic that it takes no records.
	complainEvery = 10 * time.Second
	// closeTimeout bounds the closing of the topic of a bus that is gone.
	closeTimeout = 10 * time.Second
)

// outlets are the topics of buses. Each is opened by the first request for its bus, in the background, and closed when the bus is gone.
type outlets struct {
	log      *zap.Logger
	why      func() error // why Pulsar cannot be connected to; may be nil
	open     Open
	topics   registry.Topics
	patience time.Duration // of requests with a topic that is being opened
	gauge    interface{ Set(float64) }

	background context.Context
	cancel     context.CancelFunc
	retiring   sync.WaitGroup

	mu    sync.Mutex
	known map[string]*outlet // by the bus' name
}

// outlet is the topic of one bus.
//
// When a request was not acknowledged in time, the outlet is away: requests are refused at once, instead of each filling the queue with what its sender
// will send again. It is back when all that it held has been acknowledged.
type outlet struct {
	topic   string
	created time.Time    // of the bus: one that is made again has another topic
	until   time.Time    // requests wait for the opening until then
	why     func() error // why Pulsar cannot be connected to; may be nil
	stop    context.CancelFunc
	late    chan struct{} // a request ran out of time
	away    atomic.Pointer[error]

	ready     chan struct{} // closed when it is open, or cannot be
	publisher Publisher     // once ready, nil if it cannot be opened
	fault     error
	ended     chan struct{} // closed when its goroutine has returned

	// Under outlets.mu.
	failed     time.Time // when it was found not to take records, zero while it may
	complained time.Time // when the log said so of the topic
	retired    bool
}

func newOutlets(log *zap.Logger, topics registry.Topics, patience time.Duration, gauge interface{ Set(float64) }, why func() error, open Open) *outlets {
	o := &outlets{log: log, why: why, open: open, topics: topics, patience: patience, gauge: gauge, known: map[string]*outlet{}}
	o.background, o.cancel = context.WithCancel(context.Background())
	return o
}

// of returns the outlet of a bus.
func (o *outlets) of(bus *registry.Bus) *outlet {
	o.mu.Lock()
	defer o.mu.Unlock()
	var complained time.Time
	if l := o.known[bus.Name]; l != nil {
		if l.usable(bus) {
			return l
		}
		complained = l.complained
		o.retire(bus.Name, l)
	}
	l := &outlet{
		topic: o.topics.Events(bus.Name), created: bus.Created, until: time.Now().Add(o.patience),
		why: o.why, complained: complained, late: make(chan struct{}, 1), ready: make(chan struct{}), ended: make(chan struct{}),
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(o.background)
	o.known[bus.Name] = l
	o.gauge.Set(float64(len(o.known)))
	go o.run(ctx, l)
	return l
}

// usable reports whether the outlet is the bus', and not to be opened anew. The outlets' mu is held.
func (l *outlet) usable(bus *registry.Bus) bool {
	return l.created.Equal(bus.Created) && (l.failed.IsZero() || time.Since(l.failed) < tryAgain)
}

// run opens an outlet and watches over it until ctx ends.
func (o *outlets) run(ctx context.Context, l *outlet) {
	defer close(l.ended)
	p, err := o.open(ctx, l.topic)
	if err != nil {
		l.fault = err
		o.fail(l, err)
		close(l.ready)
		return
	}
	l.publisher = p
	close(l.ready)
	o.log.Info("topic is open", zap.String("topic", l.topic))
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.late:
		}
		began := time.Now()
		o.log.Warn("refusing events until the broker acknowledges what is queued", zap.String("topic", l.topic))
		if p.Flush(ctx) != nil {
			return // ctx has ended
		}
		l.away.Store(nil)
		o.log.Info("taking events again", zap.String("topic", l.topic), zap.Duration("after", time.Since(began)))
	}
}

// fail notes that an outlet takes no records: it is opened anew when it is asked for again.
func (o *outlets) fail(l *outlet, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.failed.IsZero() && !l.retired {
		l.failed = time.Now()
		if o.background.Err() == nil && l.failed.Sub(l.complained) >= complainEvery {
			l.complained = l.failed
			o.log.Error("a topic takes no records", zap.String("topic", l.topic), zap.Error(err))
		}
	}
}

// noteOutcome looks for errors after which the topic takes no further record.
func (o *outlets) noteOutcome(l *outlet, err error) {
	if errors.Is(err, messaging.ErrTopicTerminated) || errors.Is(err, messaging.ErrProducerLost) || errors.Is(err, messaging.ErrClosed) {
		o.fail(l, err)
	}
}

// noteLate has requests refused until all is acknowledged.
func (l *outlet) noteLate() {
	err := fmt.Errorf("no acknowledgement in time, since %s", time.Now().UTC().Format(time.RFC3339))
	if l.away.CompareAndSwap(nil, &err) {
		select {
		case l.late <- struct{}{}:
		default:
		}
	}
}

// refuses is an error while the topic of a bus is known not to take records: then nothing of the request need be read. It opens nothing: the sender may
// not be known yet.
func (o *outlets) refuses(bus *registry.Bus) error {
	o.mu.Lock()
	l := o.known[bus.Name]
	usable := l != nil && l.usable(bus)
	o.mu.Unlock()
	if !usable {
		return nil // the topic will be opened
	}
	select {
	case <-l.ready:
		return l.open()
	default:
		return nil
	}
}

// open is an error while the topic, which is ready, takes no records.
func (l *outlet) open() error {
	if l.fault != nil {
		return door.Unavailable("topic_unavailable", door.RetryAway, "the bus' topic cannot be opened: %s", door.Cut(l.fault.Error(), door.MaxReason))
	}
	if away := l.away.Load(); away != nil {
		return door.Unavailable("pulsar_away", door.RetryAway, "Pulsar is away: %v", door.Because(*away, l.why))
	}
	return nil
}

// await waits until the topic is open, no longer than the first request for it may wait.
func (l *outlet) await(ctx context.Context) error {
	select {
	case <-l.ready:
	default:
		timer := time.NewTimer(time.Until(l.until))
		defer timer.Stop()
		select {
		case <-l.ready:
		case <-timer.C:
			return door.Unavailable("topic_unavailable", door.RetryAway, "Pulsar is away: %v", door.Because(errNotOpen, l.why))
		case <-ctx.Done():
			return door.ErrDisconnected
		}
	}
	return l.open()
}

var errNotOpen = errors.New("the bus' topic is not open yet")

// sweep closes the topics of buses that are gone.
func (o *outlets) sweep(now *registry.Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, l := range o.known {
		if bus := now.Bus(name); bus == nil || !bus.Created.Equal(l.created) {
			o.retire(name, l)
		}
	}
}

// retire closes an outlet in the background. o.mu is held.
func (o *outlets) retire(name string, l *outlet) {
	delete(o.known, name)
	o.gauge.Set(float64(len(o.known)))
	l.retired = true
	l.stop()
	o.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := l.close(ctx); err != nil {
			o.log.Warn("closed the topic of a bus with events that were not acknowledged", zap.String("topic", l.topic), zap.Error(err))
		}
	})
}

func (l *outlet) close(ctx context.Context) error {
	<-l.ended
	if l.publisher == nil {
		return nil
	}
	return l.publisher.Close(ctx)
}

// check is an error when there are topics, and none of them takes records.
func (o *outlets) check() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	for _, l := range o.known {
		away := l.away.Load()
		if away == nil && l.failed.IsZero() {
			return nil
		}
		if err = errors.New("a topic takes no records: " + l.topic); away != nil {
			err = door.Because(*away, l.why)
		}
	}
	return err
}

// close flushes and closes all.
func (o *outlets) close(ctx context.Context) error {
	o.cancel()
	o.mu.Lock()
	all := o.known
	o.known = map[string]*outlet{}
	o.mu.Unlock()
	errs := make(chan error, len(all))
	for _, l := range all {
		go func() { errs <- l.close(ctx) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	o.retiring.Wait()
	return err
}
