// Package outbox publishes the effects of the zone's Redis to the zone's topic. It reads the
// streams of effects, packs them into messages, stores these in the order of each stream, and then
// trims the streams. Shipper does so for one Redis, ClusterShipper for a Redis Cluster. The package
// may import topic, primaries, redislib and the packages that these import.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says which effects to ship, and to which topic.
type Config struct {
	Zone  string
	Topic string // of the zone
	// Alone says that there is no other zone, so that no other Redis can differ from this one.
	Alone bool
	// Settings describes the settings that must be equal in all zones, see [wire.Config]. Each message
	// has it.
	Settings string
}

// Status is the state of a shipper.
type Status struct {
	// Owner says that this process owns the topic and ships. If false, another process owns it, or
	// opening it fails.
	Owner bool
	// Stored is the last effect, or in front of a Redis Cluster the greatest one, that is known to be
	// stored in the topic.
	Stored wire.ID
	Epoch  int64
}

// publisher publishes to the zone's topic as long as this process owns it. Shippers of both kinds
// have one.
type publisher struct {
	cfg     Config
	client  *messaging.Client
	log     *zap.Logger
	metrics *Metrics
	health  *health.State

	mu     sync.Mutex
	status Status
}

func newPublisher(cfg Config, client *messaging.Client, log *zap.Logger, m *Metrics) *publisher {
	log = log.Named("outbox")
	return &publisher{cfg: cfg, client: client, log: log, metrics: m, health: health.New(log)}
}

// Status returns the state of the shipper.
func (p *publisher) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Unhealthy returns why this process does not ship all effects at present. It is nil if it does, or
// if another process owns the topic.
func (p *publisher) Unhealthy() error { return p.health.Current() }

// run calls ship whenever this process owns the topic. It returns if ctx ends, or if trying again
// does not help.
func (p *publisher) run(ctx context.Context, ship func(context.Context, *topicWriter) error) error {
	return retry(ctx, func(ctx context.Context) error { return p.shipWhileOwner(ctx, ship) }, final, p.health.Set)
}

// retry calls f, with pauses, until ctx ends or f returns an error that is fatal. It passes other
// errors to report.
func retry(ctx context.Context, f func(context.Context) error, fatal func(error) bool, report func(error)) error {
	var pause backoff.Backoff
	for {
		began := time.Now()
		err := f(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the error comes from the end of ctx
		case fatal(err):
			return err
		}
		report(err)
		pause.Held(time.Since(began))
		pause.Wait(ctx)
	}
}

// ErrState says that Sonic cannot continue with the state of this Redis, topic or outbox.
var ErrState = errors.New("this Redis cannot be used")

// final reports whether trying again does not help.
func final(err error) bool {
	return errors.Is(err, messaging.ErrTopicTerminated) || errors.Is(err, messaging.ErrInvalidTopic) || errors.Is(err, ErrState)
}

// closeTimeout bounds closing the writer, and finishing a write that is in flight at a stop.
const closeTimeout = 5 * time.Second

// shipWhileOwner waits until this process owns the topic, and calls ship. The context of ship ends
// with ctx or when the writer has lost the topic. A write that is in flight at a stop gets some time
// to finish, otherwise the next owner would have to find out whether the message was stored.
func (p *publisher) shipWhileOwner(ctx context.Context, ship func(context.Context, *topicWriter) error) error {
	w, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer p.release(w)
	p.mu.Lock()
	p.status.Owner = true
	p.mu.Unlock()
	p.log.Info("took over the topic", zap.String("topic", w.writer.Topic()), zap.Stringer("stored", w.packer.Tail.Last))

	storing, cancelStoring := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelStoring()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancelStoring) })()
	owned, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := w.writer.Context()
	defer context.AfterFunc(lost, func() { cancel(&writerError{context.Cause(lost)}) })()
	w.storeContext = storing
	if err = ship(owned, w); owned.Err() != nil {
		return context.Cause(owned)
	}
	return err
}

// acquire waits until this process is the only one that may write to the topic.
func (p *publisher) acquire(ctx context.Context) (*topicWriter, error) {
	writer, err := p.client.EntryWriter(ctx, p.cfg.Topic, messaging.EntryWriterConfig{
		Name: fmt.Sprintf("sonic-%s-0", p.cfg.Zone), Label: "sonic", Replicated: true,
		Position: func(d *messaging.Delivery) (int64, error) {
			h, err := topic.Header(d, p.cfg.Zone)
			switch {
			case errors.Is(err, wire.ErrForeign):
				return -1, nil // see tail
			case err != nil:
				return 0, fmt.Errorf("the last message of %s: %w", p.cfg.Topic, err)
			}
			return h.Position, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the topic: %w", err)
	}
	w := &topicWriter{writer: writer, storeContext: ctx, metrics: p.metrics, packer: wire.Packer{Origin: p.cfg.Zone, Config: p.cfg.Settings}}
	if w.packer.Tail, err = p.tail(ctx, writer.Last()); err != nil {
		p.release(w)
		return nil, err
	}
	return w, nil
}

// release lets another process write to the topic.
func (p *publisher) release(w *topicWriter) {
	p.mu.Lock()
	p.status.Owner = false
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := w.writer.Close(ctx); err != nil {
		p.log.Warn("cannot release the topic cleanly", zap.Error(err))
	}
}

// tail returns the end of the topic, of which d is the last message; nil: the topic is empty. It
// skips messages at the end that this zone's Sonics have not written.
func (p *publisher) tail(ctx context.Context, d *messaging.Delivery) (wire.Tail, error) {
	h, err := topic.Last(ctx, p.client, d, p.cfg.Zone, func(d *messaging.Delivery, err error) {
		p.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
	})
	switch {
	case err != nil:
		return wire.Tail{}, err
	case h == nil:
		return wire.Tail{Position: -1}, nil
	}
	t := wire.Tail{Last: h.Last, Count: h.Count, Position: h.Position, Epoch: h.Epoch, Watermark: h.Watermark}
	if h.Part < h.Parts && !h.Slots {
		// The remaining parts are not stored. The owner makes the same parts again, and the broker
		// drops those that it has already stored.
		t.Last = h.Prev
	}
	return t, nil
}

// recordStored records the end of the topic.
func (p *publisher) recordStored(t wire.Tail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Stored, p.status.Epoch = t.Last, t.Epoch
}

// topicWriter writes to the topic while this process owns it.
type topicWriter struct {
	writer       *messaging.EntryWriter
	storeContext context.Context
	metrics      *Metrics
	packer       wire.Packer // its Tail is the stored end of the topic
}

// storeMessages stores messages, after which ends is the end of the topic.
func (w *topicWriter) storeMessages(messages []wire.Message, ends wire.Tail) error {
	began := time.Now()
	for i := range messages {
		m := &messages[i]
		r := &messaging.Record{Payload: m.Payload, Properties: m.Header.Properties(), SequenceID: &m.Header.Position}
		if err := w.writer.Store(w.storeContext, r); err != nil {
			return &writerError{fmt.Errorf("cannot store effects: %w", err)}
		}
	}
	w.metrics.stored(messages, ends.Count-w.packer.Tail.Count, time.Since(began))
	w.packer.Tail = ends
	return nil
}

// writerError is an error of the topic's writer, which must be opened again.
type writerError struct{ err error }

func (e *writerError) Error() string { return e.err.Error() }
func (e *writerError) Unwrap() error { return e.err }
