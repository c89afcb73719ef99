package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// EntryWriterConfig says how to write. Name and Position must be set.
type EntryWriterConfig struct {
	// Name is the producer's name, by which brokers deduplicate. All writers of
	// one source have the same name, on whatever machine, and others have another.
	Name string
	// Position returns the source position of a stored message, 0 or more, and a negative number
	// when it has none. Consumers do not get a message's SequenceID, so the caller of Store also
	// keeps the position in a property or the payload. It is called with the topic's last message,
	// at opening and during Store. An error refuses the topic.
	Position func(*record.Delivery) (int64, error)
	// Replicated says that the topic is replicated to this cluster too, and that no other cluster's
	// clients write to it. Then the writer is the only one of its Name ([NamedOwnership]): an
	// exclusive one would keep the other clusters' replicators out.
	Replicated bool
	// Label is the label "profile" of the publishing metrics. Default "entries".
	Label string
	// Compression of each entry. Default LZ4.
	Compression Compression
	// MaxRecords is the largest number of records in one entry. Default 10,000.
	MaxRecords int
	// AckTimeout is how long an entry may take at a broker that answers before its producer
	// counts as lost. Default 1m.
	AckTimeout time.Duration
}

// profile is what one entry at a time needs, see StoreEntry.
func (c EntryWriterConfig) profile() Profile {
	p := Ops()
	p.Name, p.ProducerName = cmp.Or(c.Label, "entries"), c.Name
	p.Compression = cmp.Or(c.Compression, p.Compression)
	p.AckTimeout = cmp.Or(c.AckTimeout, p.AckTimeout)
	p.GroupCommit, p.Linger = true, time.Hour // an entry ends where Store says
	p.BatchRecords, p.BatchBytes = cmp.Or(c.MaxRecords, p.BatchRecords), 1<<20
	p.MaxPendingRecords = p.BatchRecords
	p.MaxPendingBytes = 4*MaxEntryBytes + int64(p.BatchRecords)*record.RecordOverhead
	p.Admission, p.Routing = Block, RouteKeyHash
	// Not WaitForOwnership: a producer that is closed while it waits in the broker's queue has its
	// turn all the same, and blocks the topic until its connection ends. A writer tries again.
	p.Ownership = ExclusiveOwnership
	if c.Replicated {
		p.Ownership = NamedOwnership
	}
	return p
}

// MaxEntryBytes is how large an entry of several records may be, by [EntryBytes]: half of
// the largest batch of the library. A single record may be as large as the broker takes.
const MaxEntryBytes = 512 << 10

// EntryBytes is at least what r takes in an entry before compression.
func EntryBytes(r *record.Record) int {
	const message, property = 64, 12 // beyond their own bytes
	n := len(r.Key) + len(r.OrderingKey) + len(r.Payload) + message
	for k, v := range r.Properties {
		n += len(k) + len(v) + property
	}
	return n
}

// EntryWriter stores each position of a source that numbers its records once in one partition,
// whatever ends in between: the process, the broker, connections. [Client.EntryWriter] opens one.
// The topic needs deduplication on the broker: see [Namespace.SetDeduplication].
//
// All records up to the position of the partition's last message are stored, and no record
// behind it. That holds because:
//
//  1. Nobody else writes between the reading of the last message and writing: the exclusive
//     producer is open before the reading. On a topic that is replicated to this cluster it is the
//     only one of its name instead.
//
//  2. The stored records have no gaps. With several entries in flight a broken connection can leave
//     a later one stored without an earlier one, so one entry is in flight at a time, flushed once.
//     Where the broker's maximum message size is below the entry's, the client cuts it: the parts
//     behind the first begin with a sequence id that is stored already, and the broker drops them.
//
//  3. Nothing that was sent before is stored after the reading. An entry of a killed process may
//     still be on its way to the bookies. All writers have the same name, and an entry's sequence
//     id is its highest position, so the broker knows which entries it has pushed and stored. A
//     writer's first record goes alone. If a predecessor's entry with it is pushed and not stored,
//     the client gives up the connection, and the next writer asks again. If it is stored, the
//     broker says so, and the last message is read again. Once the record has its own place,
//     nothing older comes any more.
//
//     A duplicate whose position is above the last message's is not stored: the beginning of an
//     entry that was cut used up its id. The record goes again, alone, under a higher id, the sum
//     of the last position and a power of two, until it has its own place or the reading
//     finds it. All writers that read the same last position take the same ids, so they pass over
//     no entry of a predecessor. While the ids in use are above the positions, entries continue by
//     the same rule. See SequenceID.
//
//  4. Nothing is sent again by itself: a producer whose connection ends is lost for good, and the
//     next writer reads which records are stored. Brokers recover deduplication's state with the
//     topic.
//
//  5. A receipt that names no place behind the last one is not believed.
//
// Without deduplication 3 and 4 do not hold: a broken connection can store the entry in flight
// twice, unseen. When retention has removed the last message, or a message of another producer is
// behind it, a duplicate counts as stored. After an entry that was cut, that can be wrong for up to
// twice as many positions as the entry had, also long after. Brokers forget deduplication's state
// after hours without a producer (brokerDeduplicationProducerInactivityTimeoutMinutes).
//
// Its methods may be called from any goroutine; calls of Store take turns.
type EntryWriter struct {
	parent     *Publishers
	topic      string
	position   func(*record.Delivery) (int64, error)
	maxRecords int
	pub        *Publisher

	owned context.Context
	lose  context.CancelCauseFunc

	storing sync.Mutex // one entry at a time
	proven  bool       // nothing older comes any more
	used    int64      // the highest sequence id that is known to be stored, if above the last position

	mu     sync.Mutex
	last   *record.Delivery // when it was last read
	at     record.MessageID // of the last message
	stored int64
}

// ErrNotOrdered is the error of [EntryWriter.Store] for records without a position, with a negative
// one, or whose positions do not rise.
var ErrNotOrdered = errors.New("messaging: records without ascending positions")

// lookTimeout is how long reading the last message, and closing after it failed, may take.
const lookTimeout = 10 * time.Second

// OpenWriter is the implementation of Client.EntryWriter.
func (c *Publishers) OpenWriter(ctx context.Context, topic string, cfg EntryWriterConfig) (*EntryWriter, error) {
	if cfg.Name == "" || cfg.Position == nil {
		return nil, errors.New("messaging: entry writer: Name and Position must be set")
	}
	if !record.ValidTopic(topic) {
		return nil, fmt.Errorf("%w: %q", record.ErrInvalidTopic, topic)
	}
	ctx, forget := clientquirks.EitherEnds(ctx, c.Life)
	defer forget()
	name, err := c.readers.OnlyPartition(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("messaging: open entry writer for %s: %w", topic, err)
	}
	profile := cfg.profile()
	pub, err := c.ownerOf(ctx, name, profile)
	if err != nil {
		return nil, err
	}
	w := &EntryWriter{
		parent: c, topic: name, position: cfg.Position, maxRecords: profile.BatchRecords, pub: pub, stored: -1, used: -1,
	}
	w.owned, w.lose = context.WithCancelCause(context.Background())
	if _, err := w.look(ctx); err != nil {
		closing, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		_ = w.Close(closing)
		return nil, fmt.Errorf("messaging: open entry writer for %s: %w", topic, err)
	}
	go w.watch()
	return w, nil
}

// ownerOf opens a publisher that owns topic, and waits until no other does.
func (c *Publishers) ownerOf(ctx context.Context, topic string, p Profile) (*Publisher, error) {
	var pause backoff.Backoff
	for {
		pub, err := c.Open(ctx, topic, p)
		if !errors.Is(err, record.ErrOwned) {
			return pub, err
		}
		if !backoff.Sleep(ctx, pause.Next()) {
			return nil, fmt.Errorf("messaging: open entry writer for %s: %w (%w)", topic, context.Cause(ctx), err)
		}
	}
}

// watch ends the ownership when the producer is lost.
func (w *EntryWriter) watch() {
	select {
	case <-w.owned.Done():
	case <-w.parent.Life.Done():
		w.lose(record.ErrClosed)
	case <-w.pub.Owned().Done():
		w.lose(context.Cause(w.pub.Owned()))
	}
}

// look reads the last message and returns its position, negative for none.
func (w *EntryWriter) look(ctx context.Context) (position int64, err error) {
	reading, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	last, err := w.parent.readers.Last(reading, w.topic)
	if err != nil {
		return 0, fmt.Errorf("cannot read the last stored message, so nothing is written: %w", err)
	}
	position = -1
	var at record.MessageID
	if last != nil {
		at = last.ID
		if position, err = w.position(last); err != nil {
			return 0, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.at, w.stored = last, at, max(w.stored, position)
	return position, nil
}

// Last returns the topic's last message at the time when the writer read it, nil for none.
func (w *EntryWriter) Last() *record.Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Stored returns the highest position that is known to be stored, -1 for none. Continue behind it.
func (w *EntryWriter) Stored() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stored
}

// LastID is the id of the topic's last message, stored or read by the writer; zero for none.
func (w *EntryWriter) LastID() record.MessageID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// Context ends when the writer is closed, is in doubt, or has lost its topic; context.Cause
// says which. Work that only the topic's owner may do must end then. A broker that cannot be
// reached may have accepted another writer before this one learns of it; the broker then refuses
// entries of this one.
func (w *EntryWriter) Context() context.Context { return w.owned }

// Topic is the name of the topic, or partition, that is written.
func (w *EntryWriter) Topic() string { return w.topic }

// Unhealthy returns why nothing is being stored now, see [Publisher.Unhealthy].
func (w *EntryWriter) Unhealthy() error { return w.pub.Unhealthy() }

// Store stores rs as one entry, all of them or none, and returns nil when they are stored. Each
// record's SequenceID is its position in the source, 0 or more. Positions must rise and may have
// gaps; otherwise the error is [ErrNotOrdered], and nothing is stored. Records up to Stored are not
// stored again. A writer's first position is stored as a separate entry. The records must not be
// changed before Store returns, and after ErrInDoubt not before Close has returned nil: the client
// may still read them.
//
// ErrTooLarge says that the broker does not accept the entry, or that several records are more than
// MaxRecords or [MaxEntryBytes]. The records behind Stored are then not stored, and the writer can
// be used again. The same holds when ctx has ended before anything was sent. ErrInDoubt says that
// it is unknown which records are stored, also when ctx ended meanwhile: of an entry above the
// broker's maximum message size, the beginning can be stored. ErrProducerLost says that another
// writer has, or had, the topic. After either of these errors the writer cannot be used: close it
// and open another, which finds the last stored position. An error may be several of them: if it is
// ErrTooLarge too, try fewer records at a time.
func (w *EntryWriter) Store(ctx context.Context, rs ...*record.Record) error {
	for i, r := range rs {
		if r.SequenceID == nil || *r.SequenceID < 0 || i > 0 && *r.SequenceID <= *rs[i-1].SequenceID {
			return ErrNotOrdered
		}
	}
	w.storing.Lock()
	defer w.storing.Unlock()
	for {
		for stored := w.Stored(); len(rs) > 0 && *rs[0].SequenceID <= stored; {
			rs = rs[1:]
		}
		if len(rs) == 0 {
			return nil
		}
		if w.owned.Err() != nil {
			return context.Cause(w.owned)
		}
		entry := rs
		if !w.proven {
			entry = rs[:1]
		}
		if err := w.store(ctx, entry); err != nil {
			return err
		}
	}
}

// store stores one entry, or finds out why a broker takes it for a duplicate.
func (w *EntryWriter) store(ctx context.Context, rs []*record.Record) error {
	bytes := 0
	for _, r := range rs {
		bytes += EntryBytes(r)
	}
	if len(rs) > 1 && (len(rs) > w.maxRecords || bytes > MaxEntryBytes) {
		return fmt.Errorf("%w: %d records of %d bytes in one entry", record.ErrTooLarge, len(rs), bytes)
	}
	position := *rs[len(rs)-1].SequenceID
	w.mu.Lock()
	at, ids := w.at, entryIDs{first: SequenceID(w.stored, w.used, position), rest: w.used}
	w.mu.Unlock()
	id, err := StoreEntry(ctx, w.pub, &ids, rs...)
	switch {
	case errors.Is(err, ErrInDoubt):
		return w.end(err)
	case errors.Is(err, record.ErrTooLarge) || err != nil && ctx.Err() != nil:
		return err
	case err != nil: // the publisher takes nothing any more
		return w.end(err)
	case id.Deduplicated() && w.proven: // the client has sent it again
		return w.end(fmt.Errorf("%w: an entry was answered as a duplicate", ErrInDoubt))
	case id.Deduplicated():
		return w.duplicate(ctx, position, ids.first)
	case !at.IsZero() && id.Compare(at) <= 0:
		return w.end(fmt.Errorf("%w: the receipt names %s, and %s is stored", ErrInDoubt, id, at))
	}
	w.proven, w.used = true, ids.first
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stored, w.at = max(w.stored, position), id
	return nil
}

// maxSequenceID is the highest id behind which there is another.
const maxSequenceID = 1 << 61

// SequenceID is the id of an entry up to position, when the last stored position is stored, and
// used is the highest id that is known to be used up: position, or if that is used up, the lowest
// sum of stored and a power of two that is not. See 3.
func SequenceID(stored, used, position int64) int64 {
	if used <= stored {
		return position
	}
	return max(position, stored+1<<bits.Len64(uint64(used-stored)))
}

// duplicate finds out whether a position that the broker took for a duplicate is stored, or only
// its id is used up. See 3.
func (w *EntryWriter) duplicate(ctx context.Context, position, id int64) error {
	w.used = max(w.used, id)
	found, err := w.look(ctx)
	if err == nil && found < position && found >= 0 && w.used >= maxSequenceID {
		err = fmt.Errorf("%d and the sequence ids up to %d are used up", position, w.used)
	}
	if err != nil {
		return w.end(fmt.Errorf("%w: %w", ErrInDoubt, err))
	}
	if found < 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stored = max(w.stored, position)
	}
	return nil
}

// end ends the writer.
func (w *EntryWriter) end(err error) error {
	w.lose(err)
	return err
}

// Close gives the topic up. It waits for an entry in flight, and for the broker's answer, until
// ctx ends. Store has reported which records are stored.
func (w *EntryWriter) Close(ctx context.Context) error {
	err := w.pub.Close(ctx)
	w.lose(record.ErrClosed)
	if errors.Is(err, record.ErrUnacknowledged) {
		return nil
	}
	return err
}
