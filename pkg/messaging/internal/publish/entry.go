package publish

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// ErrInDoubt is the error of [EntryWriter.Store] when it is not known whether the entry was stored.
var ErrInDoubt = errors.New("messaging: it is unknown whether the entry was stored")

// entryIDs are the sequence ids of one entry. A broker knows an entry by its first record's id. All
// further records have rest, an id that is stored: if the client cuts the entry, the broker drops
// the later parts.
type entryIDs struct{ first, rest int64 }

// StoreEntry stores rs as one entry, all or none, and waits for that. The id is the last record's;
// if it is [MessageID.Deduplicated] the broker dropped the entry as a duplicate. Without ids the
// records have their own. [ErrInDoubt] says that it is unknown whether they were stored. With any
// other error nothing was stored.
//
// It needs an owner of one partition that publishes nothing by other methods, bounds that rs fits
// in, and one caller at a time. When the client cuts the entry, for the broker's maximum message
// size, the receipts or a refused record show it, and the producer is given up. pulsar-client-go
// v0.21.0 also gives wrong receipts when one connection replaces another.
func StoreEntry(ctx context.Context, p *Publisher, ids *entryIDs, rs ...*record.Record) (record.MessageID, error) {
	if len(rs) == 0 {
		return record.MessageID{}, nil
	}
	if err := ctx.Err(); err != nil {
		return record.MessageID{}, fmt.Errorf("messaging: nothing published: %w", err)
	}
	o := &entryOutcome{left: len(rs), want: len(rs), complete: make(chan struct{})}
	pp := p.all()[0]
	if err := pp.handOver(ids, rs, o.done); err != nil {
		return record.MessageID{}, err
	}
	select {
	case <-o.complete:
	case <-ctx.Done():
		return record.MessageID{}, fmt.Errorf("%w: %w", ErrInDoubt, p.explain(ctx.Err()))
	}
	id, err := o.result()
	if errors.Is(err, ErrInDoubt) {
		pp.endWithEntry(errEntryInDoubt) // what the client still has is not sent
	}
	return id, err
}

// Why a producer is given up.
var (
	errEntryCut     = errors.New("the client took only a part of an entry")
	errEntryInDoubt = errors.New("the receipts do not say that an entry was stored whole")
)

// handOver gives the producer all of rs, and flushes it. An error says that it has none of it.
func (pp *partitionPublisher) handOver(ids *entryIDs, rs []*record.Record, done func(record.MessageID, error)) error {
	entry, raw, generation, err := pp.admitEntry(ids, rs, done)
	if err != nil {
		return err
	}
	refused := pp.sendEntry(raw, entry)
	if refused > 0 || refused == 0 && clientquirks.Classify(*pp.failure.Load()) != clientquirks.TooLarge {
		pp.endWithEntry(errEntryCut) // before anything is flushed
		pp.sends.Done()
		return nil
	}
	pp.mu.Lock()
	pp.handing = false
	pp.mu.Unlock()
	if refused == 0 { // the producer has nothing, and continues
		pp.sends.Done()
		return nil
	}
	go func() {
		defer pp.sends.Done()
		clientquirks.Flush(generation, raw)
	}()
	return nil
}

// endWithEntry has the producer given up, and no entry admitted any more.
func (pp *partitionPublisher) endWithEntry(cause error) {
	pp.shut(fmt.Errorf("%w: %w", record.ErrProducerLost, cause))
	pp.giveUp(cause)
}

// sendEntry gives entry to raw, up to the first record that raw refuses, and returns its index, or
// -1. Those behind it must not be stored without it, and get the same outcome.
func (pp *partitionPublisher) sendEntry(raw pulsar.Producer, entry []*pending) int {
	failures := pp.failures.Load() // an outcome before the flush is a refusal
	for i, e := range entry {
		pp.send(raw, e)
		if pp.failures.Load() == failures {
			continue
		}
		refusal := *pp.failure.Load()
		for _, later := range entry[i+1:] {
			later.receipt(nil, nil, refusal)
		}
		return i
	}
	return -1
}

// admitEntry puts all of rs on the list, or nothing, and keeps everybody from flushing until it
// is handed over. sends.Done must be called then.
func (pp *partitionPublisher) admitEntry(
	ids *entryIDs, rs []*record.Record, done func(record.MessageID, error),
) (entry []*pending, raw pulsar.Producer, generation context.Context, err error) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	switch {
	case pp.refusal != nil:
		return nil, nil, nil, pp.refusal
	case pp.producer == nil:
		return nil, nil, nil, record.ErrProducerLost
	case pp.count > 0 || len(rs) > pp.maxCount:
		return nil, nil, nil, record.ErrQueueFull
	}
	entry = make([]*pending, len(rs))
	for i, r := range rs {
		size := record.SizeOf(r)
		pp.count++
		pp.bytes += size
		entry[i] = pp.enter(r, size, done)
		entry[i].sent = true
		if ids != nil {
			entry[i].number(ids.rest)
		}
	}
	if ids != nil {
		entry[0].number(ids.first)
	}
	pp.handing = true
	pp.sends.Add(1)
	return entry, pp.producer, pp.generation, nil
}

// entryOutcome gathers the receipts of one entry.
type entryOutcome struct {
	want     int
	complete chan struct{}

	mu       sync.Mutex
	left     int
	stored   int // receipts without an error
	tooLarge int
	last     record.MessageID
	err      error // the first one
	mixed    bool  // the receipts are not of one entry
	reported bool  // complete is closed
}

func (o *entryOutcome) done(id record.MessageID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		if o.err == nil {
			o.err = err
		}
		if errors.Is(err, record.ErrTooLarge) {
			o.tooLarge++
		}
	} else {
		index, size := record.BatchOf(id)
		o.mixed = o.mixed || id.IsZero() || int(index) != o.stored || int(size) != o.want ||
			o.stored > 0 && !record.SameEntry(id, o.last)
		o.stored++
		o.last = id
	}
	o.left--
	// A part of an entry that was cut may have no receipt: brokers answer a duplicate before what
	// is in front of it, and the client takes no receipt out of turn.
	if (o.left == 0 || o.mixed) && !o.reported {
		o.reported = true
		close(o.complete)
	}
}

func (o *entryOutcome) result() (record.MessageID, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.tooLarge == o.want:
		return record.MessageID{}, o.err
	case o.err != nil:
		return record.MessageID{}, fmt.Errorf("%w: %w", ErrInDoubt, o.err)
	case o.mixed:
		return record.MessageID{}, fmt.Errorf("%w: the receipts are not of one entry", ErrInDoubt)
	default:
		return o.last, nil
	}
}
