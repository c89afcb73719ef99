package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrInDoubt is the error of [EntryWriter.Store] when it is not known whether
// the entry was stored.
var ErrInDoubt = errors.New("messaging: it is not known what was stored")

// publishEntry stores rs as one entry, so that all of them are stored or none, and waits
// for that. The id is the last record's; if it is [MessageID.Deduplicated] the broker
// has an entry of the same sequence id already, and dropped this one.
//
// One entry needs a publisher of one partition and of [Profile.GroupCommit], with a
// Linger longer than it takes to hand rs over, bounds that rs fits in, and one caller at
// a time: anything else, and a broker whose maximum message size is less than the batch,
// can cut it in two, which is [ErrInDoubt].
//
// ErrTooLarge, and the error of a ctx that had ended before the call, say that nothing was
// stored. Any other error is ErrInDoubt as well: close the publisher, and find out by
// [Client.Last].
//
// The receipts are looked at closely because pulsar-client-go v0.21.0 gives wrong ones
// when a connection breaks and another takes its place at the same time: its handler of
// receipts looks at the head of its queue and removes the head in two steps, and the
// requests that both then answer come from a pool and may be other messages' already.
func (p *Publisher) publishEntry(ctx context.Context, rs ...*Record) (MessageID, error) {
	if len(rs) == 0 {
		return MessageID{}, nil
	}
	if err := ctx.Err(); err != nil {
		return MessageID{}, fmt.Errorf("messaging: nothing published: %w", err)
	}
	o := &entryOutcome{left: len(rs), want: len(rs), complete: make(chan struct{})}
	p.publishAll(ctx, rs, o.done)
	select {
	case <-o.complete:
		return o.result()
	case <-ctx.Done():
		return MessageID{}, fmt.Errorf("%w: %w", ErrInDoubt, p.explain(ctx.Err()))
	}
}

// entryOutcome gathers the receipts of one entry.
type entryOutcome struct {
	want     int
	complete chan struct{}

	mu       sync.Mutex
	left     int
	stored   int // receipts without an error
	tooLarge int
	last     MessageID
	err      error // the first one
	mixed    bool  // the receipts are not of one entry
}

func (o *entryOutcome) done(id MessageID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil:
		if o.err == nil {
			o.err = err
		}
		if errors.Is(err, ErrTooLarge) {
			o.tooLarge++
		}
	case id.IsZero():
		o.mixed = true
	case o.stored > 0 && !o.last.IsZero() && !id.sameEntry(o.last):
		o.mixed = true
	case int(id.batch) != o.stored || int(id.batchSize) != o.want:
		o.mixed = true
	}
	if err == nil {
		o.stored++
		o.last = id
	}
	if o.left--; o.left == 0 {
		close(o.complete)
	}
}

func (o *entryOutcome) result() (MessageID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.tooLarge == o.want:
		return MessageID{}, o.err
	case o.err != nil:
		return MessageID{}, fmt.Errorf("%w: %w", ErrInDoubt, o.err)
	case o.mixed:
		return MessageID{}, fmt.Errorf("%w: the receipts are not of one entry", ErrInDoubt)
	default:
		return o.last, nil
	}
}
