package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
)

// EntryWriterConfig says how to write. Name and Position must be set.
type EntryWriterConfig struct {
	// Name is the producer's name, by which brokers deduplicate. All writers of
	// one source have the same name, on whatever machine, and others have another.
	Name string
	// Position returns the source position that a message of the topic was stored under, 0 or
	// more, and a negative number when the message has none. Consumers are not told a message's
	// SequenceID, so the caller of Store also keeps the position in a property (or the payload).
	// An error refuses the topic: opening fails with it. It is called with the topic's last
	// message: at opening, and again during Store.
	Position func(*Delivery) (int64, error)
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

func (c EntryWriterConfig) withDefaults() EntryWriterConfig {
	ops := Ops()
	if c.Label == "" {
		c.Label = "entries"
	}
	if c.Compression == "" {
		c.Compression = ops.Compression
	}
	if c.MaxRecords == 0 {
		c.MaxRecords = ops.BatchRecords
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = ops.AckTimeout
	}
	return c
}

// profile is what one entry at a time needs, see publishEntry.
func (c EntryWriterConfig) profile() Profile {
	p := Ops()
	p.Name, p.Compression, p.AckTimeout, p.ProducerName = c.Label, c.Compression, c.AckTimeout, c.Name
	p.GroupCommit, p.Linger = true, time.Hour // an entry ends where Store says
	p.BatchRecords, p.BatchBytes = c.MaxRecords, 1<<20
	p.MaxPendingRecords = c.MaxRecords
	p.MaxPendingBytes = 4*MaxEntryBytes + int64(c.MaxRecords)*recordOverhead
	p.Admission, p.Routing = Block, RouteKeyHash
	// Not WaitForOwnership: a producer that is closed while it waits in the broker's queue has its
	// turn all the same, and blocks the topic until its connection ends. A writer tries again.
	p.Ownership = ExclusiveOwnership
	return p
}

// MaxEntryBytes is how large an entry of several records may be, by [EntryBytes]: half of
// what the library batches. A single record may be as large as the broker takes.
const MaxEntryBytes = 512 << 10

// EntryBytes is at least what r takes in an entry before compression.
func EntryBytes(r *Record) int {
	const message, property = 64, 12 // beyond their own bytes
	n := len(r.Key) + len(r.OrderingKey) + len(r.Payload) + message
	for k, v := range r.Properties {
		n += len(k) + len(v) + property
	}
	return n
}

// EntryWriter stores what comes from a source that numbers it, so that each position of the
// source is stored once in one partition, whatever ends in between: the process, the
// broker, connections. [Client.EntryWriter] opens one.
//
// The topic needs deduplication on the broker: see [Namespace.SetDeduplication].
//
// The partition itself says what is stored: a writer owns it alone and writes in the order of
// positions, so the position of the last message says that all up to it is stored and
// nothing behind it. What has to hold for that, and what makes it hold:
//
//  1. Nobody else writes between reading the last message and writing. The producer is
//     exclusive and is open before the reading: a broker has no other then, and refuses to
//     let one back in that had the topic before.
//
//  2. What is stored has no gaps. Brokers take whatever sequence id is above the last one,
//     and clients send again, in their own time, what a broken connection left: with several
//     entries under way a later one can be taken where an earlier one was not, and the
//     earlier one is then dropped as a duplicate (pulsar-client-go v0.21.0 does that: a
//     producer that is closed while it connects anew withdraws what waits to be written, one
//     by one, while the rest is being written; and the request to open a producer again
//     overtakes what waits for the same connection). So one entry is under way at a time: it
//     is stored whole or not at all.
//
//  3. Nothing that was sent before is stored after the reading. When a process is killed the
//     broker drops its producer and lets the next one in while an entry of the old one may
//     still be on its way to the bookies: it is not the last message yet, and will be stored
//     after the reading. Deduplication makes up for that: all writers have the same name, and
//     an entry's sequence id is its highest position, so the broker knows the highest
//     position that it has pushed towards the bookies, and the highest that is stored. The
//     records of a writer's first position go alone. If a predecessor's entry with them was
//     pushed and is not stored, the broker answers that it does not know yet, for which the
//     client connects again and repeats; if it is stored, that it is a duplicate, and the last
//     message is read again. Once the answer is a place of its own, nothing older comes any
//     more: what is pushed later is stored later.
//
//  4. Nothing is sent again by itself: a producer whose connection ends is lost for good, and the
//     next writer finds out what is stored. Brokers recover deduplication's state with the
//     topic, before producers connect.
//
//  5. A receipt that names no place behind the last one is not believed.
//
// Without deduplication on the broker 3 and 4 do not hold: a connection that breaks can store
// what was under way twice, and nothing here can see it. When retention has removed the last
// message only deduplication's state is left, which brokers forget after hours without a
// producer (brokerDeduplicationProducerInactivityTimeoutMinutes).
//
// Its methods may be called from any goroutine; calls of Store take turns.
type EntryWriter struct {
	client *Client
	topic  string
	cfg    EntryWriterConfig
	pub    *Publisher

	owned context.Context
	lose  context.CancelCauseFunc

	storing sync.Mutex // one entry at a time
	proven  bool       // nothing older comes any more

	mu     sync.Mutex
	last   *Delivery // when it was last read
	at     MessageID // of the last message
	stored int64
}

// ErrNotOrdered is the error of [EntryWriter.Store] for records without a position, with a negative
// one, or whose positions fall.
var ErrNotOrdered = errors.New("messaging: records without ascending positions")

// lookTimeout is how long reading the last message, and closing after it failed, may take.
const lookTimeout = 10 * time.Second

// EntryWriter takes topic, one without partitions or a single partition of one
// (name-partition-3), for itself and finds out what it holds. It tries to open a producer until
// ctx ends, also while another writer has the topic: every 2 seconds at least. Then it reads the
// last message once, which may take 10 seconds. ctx bounds opening only. Close the writer when
// done.
//
// It fails at once when waiting does not help: without Name or Position, for a topic with several
// partitions, with an error of Position, and with the errors of [Client.Publisher] but [ErrOwned].
// When the last message cannot be read, another call may succeed.
func (c *Client) EntryWriter(ctx context.Context, topic string, cfg EntryWriterConfig) (*EntryWriter, error) {
	cfg = cfg.withDefaults()
	if cfg.Name == "" || cfg.Position == nil {
		return nil, errors.New("messaging: entry writer: Name and Position must be set")
	}
	if !validTopic(topic) {
		return nil, fmt.Errorf("%w: %q", ErrInvalidTopic, topic)
	}
	name, err := c.onlyPartition(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("messaging: open entry writer for %s: %w", topic, err)
	}
	pub, err := c.ownerOf(ctx, name, cfg.profile())
	if err != nil {
		return nil, err
	}
	w := &EntryWriter{client: c, topic: name, cfg: cfg, pub: pub, stored: -1}
	w.owned, w.lose = context.WithCancelCause(context.Background())
	if err := w.look(ctx); err != nil {
		closing, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		_ = w.Close(closing)
		return nil, fmt.Errorf("messaging: open entry writer for %s: %w", topic, err)
	}
	go w.watch()
	return w, nil
}

// ownerOf opens a publisher that owns topic, and waits until no other does.
func (c *Client) ownerOf(ctx context.Context, topic string, p Profile) (*Publisher, error) {
	var pause backoff.Backoff
	for {
		pub, err := c.Publisher(ctx, topic, p)
		if !errors.Is(err, ErrOwned) || !backoff.Sleep(ctx, pause.Next()) {
			return pub, err
		}
	}
}

// watch ends the ownership when the producer is lost.
func (w *EntryWriter) watch() {
	select {
	case <-w.owned.Done():
	case <-w.client.life.Done():
		w.lose(ErrClosed)
	case <-w.pub.Owned().Done():
		w.lose(context.Cause(w.pub.Owned()))
	}
}

// look reads the last message.
func (w *EntryWriter) look(ctx context.Context) error {
	reading, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	last, err := w.client.Last(reading, w.topic)
	if err != nil {
		return fmt.Errorf("what is stored cannot be read, so nothing is written: %w", err)
	}
	position, at := int64(-1), MessageID{}
	if last != nil {
		at = last.ID
		if position, err = w.cfg.Position(last); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.at, w.stored = last, at, max(w.stored, position)
	return nil
}

// Last returns the topic's last message as it was when the writer found out what is stored;
// nil when there was none.
func (w *EntryWriter) Last() *Delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Stored returns the highest position that is known to be stored, -1 for none. Go on behind
// it.
func (w *EntryWriter) Stored() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stored
}

// Context ends when the writer is closed, is in doubt, or has lost its topic; context.Cause
// says which. Whoever keeps something that only the topic's owner may do gives it up then. A
// broker that cannot be reached may have let another writer in before this one hears of it;
// what this one sends is then refused.
func (w *EntryWriter) Context() context.Context { return w.owned }

// Topic is the name of the topic, or partition, that is written.
func (w *EntryWriter) Topic() string { return w.topic }

// Trouble says why nothing is being stored at present, see [Publisher.Trouble].
func (w *EntryWriter) Trouble() error { return w.pub.Trouble() }

// Store stores rs as one entry: all of them or none, and returns nil when they are stored. Each
// record's SequenceID is its position in the source, 0 or more; positions must not fall, and
// may have gaps: else the error is [ErrNotOrdered], and nothing is stored. Records of one position
// must be in one call. Records up to Stored are not stored again. A writer's first position is
// stored as an entry of its own. The records must not be changed before Store returns.
//
// ErrTooLarge says that the broker does not take the entry, or that several records are more
// than MaxRecords or [MaxEntryBytes]; then those that Stored does not name are not stored,
// and the writer goes on. ErrInDoubt says that this is not known, also when ctx ended meanwhile,
// and ErrProducerLost that another writer has, or had, the topic. With either the writer is
// at its end: close it and open another, which finds out what is stored. Errors may be both.
func (w *EntryWriter) Store(ctx context.Context, rs ...*Record) error {
	for i, r := range rs {
		if r.SequenceID == nil || *r.SequenceID < 0 || i > 0 && *r.SequenceID < *rs[i-1].SequenceID {
			return ErrNotOrdered
		}
	}
	w.storing.Lock()
	defer w.storing.Unlock()
	for {
		if w.owned.Err() != nil {
			return context.Cause(w.owned)
		}
		if rs = w.missing(rs); len(rs) == 0 {
			return nil
		}
		n := len(rs)
		if !w.proven {
			n = 1
			for n < len(rs) && *rs[n].SequenceID == *rs[0].SequenceID {
				n++
			}
		}
		if err := w.store(ctx, rs[:n]); err != nil {
			return err
		}
	}
}

// missing are the records of rs that are not stored.
func (w *EntryWriter) missing(rs []*Record) []*Record {
	stored := w.Stored()
	for len(rs) > 0 && *rs[0].SequenceID <= stored {
		rs = rs[1:]
	}
	return rs
}

// store stores one entry.
func (w *EntryWriter) store(ctx context.Context, rs []*Record) error {
	if err := w.fits(rs); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err // nothing is sent: there is no doubt
	}
	// The broker knows an entry by its first record's id.
	first, position := rs[0].SequenceID, *rs[len(rs)-1].SequenceID
	rs[0].SequenceID = &position
	id, err := w.pub.publishEntry(ctx, rs...)
	rs[0].SequenceID = first

	w.mu.Lock()
	at := w.at
	w.mu.Unlock()
	switch {
	case errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrInDoubt):
		return err
	case err != nil:
		return w.doubt(err)
	case !id.Deduplicated() && !at.IsZero() && id.Compare(at) <= 0:
		return w.doubt(fmt.Errorf("%w: the receipt names %s, and %s is stored", ErrInDoubt, id, at))
	case id.Deduplicated() && w.proven: // the client has sent it again
		return w.doubt(fmt.Errorf("%w: an entry was answered as a duplicate", ErrInDoubt))
	}
	w.mu.Lock()
	w.stored = max(w.stored, position)
	if !id.Deduplicated() {
		w.proven, w.at = true, id
	}
	w.mu.Unlock()
	if id.Deduplicated() { // see 3: it is stored, and what is behind it may be
		if err := w.look(ctx); err != nil {
			return w.doubt(fmt.Errorf("%w: %w", ErrInDoubt, err))
		}
	}
	return nil
}

// fits reports what is wrong with an entry of several records.
func (w *EntryWriter) fits(rs []*Record) error {
	if len(rs) == 1 {
		return nil
	}
	bytes := 0
	for _, r := range rs {
		bytes += EntryBytes(r)
	}
	if len(rs) > w.cfg.MaxRecords || bytes > MaxEntryBytes {
		return fmt.Errorf("%w: %d records of %d bytes in one entry", ErrTooLarge, len(rs), bytes)
	}
	return nil
}

// doubt ends the writer.
func (w *EntryWriter) doubt(err error) error {
	w.lose(err)
	return err
}

// Close gives the topic up. It waits for an entry under way, and for the broker's answer, until
// ctx ends. Store has said what is stored.
func (w *EntryWriter) Close(ctx context.Context) error {
	err := w.pub.Close(ctx)
	w.lose(ErrClosed)
	if errors.Is(err, ErrUnacknowledged) {
		return nil
	}
	return err
}
