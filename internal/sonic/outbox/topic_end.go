package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// topicEnd is the end of a zone's topic, to which one process writes.
type topicEnd struct {
	zone   string
	topic  string
	client *messaging.Client
	log    *zap.Logger
}

// acquire waits until this process is the only one that may write to the topic.
func (e topicEnd) acquire(ctx context.Context) (*messaging.EntryWriter, error) {
	w, err := e.client.EntryWriter(ctx, e.topic, messaging.EntryWriterConfig{
		Name: fmt.Sprintf("sonic-%s-0", e.zone), Label: "sonic", Replicated: true,
		Position: func(d *messaging.Delivery) (int64, error) {
			h, err := topic.Header(d, e.zone)
			switch {
			case errors.Is(err, wire.ErrForeign):
				return -1, nil // see tail
			case err != nil:
				return 0, fmt.Errorf("the last message of %s: %w", e.topic, err)
			}
			return h.Position, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the topic: %w", err)
	}
	return w, nil
}

// closeTimeout bounds closing the writer, and finishing a write that is in flight at a stop.
const closeTimeout = 5 * time.Second

// release lets another process write to the topic.
func (e topicEnd) release(w *messaging.EntryWriter) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		e.log.Warn("cannot release the topic cleanly", zap.Error(err))
	}
}

// tail returns the end of a topic whose last message is d; nil: the topic is empty. It skips
// messages at the end that this zone's Sonics have not written.
func (e topicEnd) tail(ctx context.Context, d *messaging.Delivery) (wire.Tail, error) {
	h, err := topic.Last(ctx, e.client, d, e.zone, func(d *messaging.Delivery, err error) {
		e.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
	})
	switch {
	case err != nil:
		return wire.Tail{}, err
	case h == nil:
		return wire.Tail{Position: -1}, nil
	}
	t := wire.Tail{Last: h.Last, Count: h.Count, Position: h.Position, Epoch: h.Epoch, Watermark: h.Watermark}
	if h.Part < h.Parts && !h.Slots {
		// The remaining parts are not stored. The loader makes the same parts again, and the broker
		// drops those that it has already stored.
		t.Last = h.Prev
	}
	return t, nil
}

// whileOwner returns a context that ends with ctx or when w has lost the topic. storing is the
// context of writes: one that is in flight at a stop gets some time to finish, otherwise the next
// owner would have to find out whether the message was stored.
func whileOwner(ctx context.Context, w *messaging.EntryWriter) (owned, storing context.Context, done func()) {
	storing, cancelStoring := context.WithCancel(context.WithoutCancel(ctx))
	stopTimer := context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, cancelStoring) })
	owned, cancel := context.WithCancelCause(ctx)
	stopLost := context.AfterFunc(w.Context(), func() { cancel(&writerError{context.Cause(w.Context())}) })
	return owned, storing, func() {
		stopLost()
		cancel(nil)
		stopTimer()
		cancelStoring()
	}
}

// writerError is an error of the topic's writer, which must be opened again.
type writerError struct{ err error }

func (e *writerError) Error() string { return e.err.Error() }
func (e *writerError) Unwrap() error { return e.err }
