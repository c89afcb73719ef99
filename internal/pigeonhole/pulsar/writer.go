package pulsar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Bounds of an entry. The library lets a batch grow to 1 MiB before it closes it by itself;
// entryBytes counts what a message takes there generously.
const (
	entryBytes      = 512 << 10
	messageOverhead = 64
	headerOverhead  = 12
)

// writer writes one partition of one topic. Lanes put messages in; its own goroutine
// (run) stores them.
type writer struct {
	sink   *Sink
	key    exactKey
	source string // the topic that its messages come from
	users  users
	log    *zap.Logger

	ctx    context.Context // ends when it is to store what it has, and close
	cancel context.CancelFunc
	hard   context.Context // ends when it is to close at once
	kill   context.CancelFunc
	ended  chan struct{}
	wake   chan struct{} // for run: pending is not empty

	mu      sync.Mutex
	phase   phase
	changed chan struct{} // closed, and made anew, when phase changes
	refuse  error         // with phaseRefusing
	trouble error         // while opening
	pub     *messaging.Publisher
	stored  int64        // the highest offset known to be stored, or refused; -1 for none
	high    int64        // the highest offset that was taken, if above stored
	pending []*exactSend // pending[first:] is taken and not known to be stored, in order
	first   int

	// Only run uses what follows.
	last    messaging.MessageID // of the last entry
	limit   int                 // of an entry's messages: less after doubt, which a broker with small messages raises
	proven  bool                // nothing older can come any more
	group   []*exactSend
	records []*messaging.Record
}

type phase int

const (
	phaseOpening  phase = iota // what is stored is not known
	phaseOpen                  // nobody else writes
	phaseRefusing              // the topic takes no message of this partition
	phaseEnded
)

// exactSend is one message until it is stored. They are used again, as sendings are.
type exactSend struct {
	record messaging.Record
	offset int64
	done   func(error)
}

// send takes m, or drops it when it is stored already. The caller is a user until m has
// its outcome.
func (w *writer) send(m *message.Message, done func(error)) {
	err, settled := w.take(m, done)
	if settled {
		w.users.leave()
		done(err)
		return
	}
	w.signal()
}

// take puts m behind what is pending, unless its outcome is known.
func (w *writer) take(m *message.Message, done func(error)) (err error, settled bool) { //nolint:revive // an outcome, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	offset := m.From.Offset
	switch {
	case w.phase == phaseEnded:
		return ErrStopped, true
	case w.phase == phaseRefusing:
		return w.refuse, true
	case w.source != m.From.Topic:
		return w.otherSource(w.source), true
	case offset <= w.stored:
		return nil, true
	case offset <= w.high:
		return w.join(offset, done)
	}
	e := w.sink.exacts.get()
	e.offset, e.done = offset, done
	key, payload, properties := m.Pulsar()
	e.record = messaging.Record{Key: key, Payload: payload, Properties: properties, EventTime: eventTime(m)}
	w.high = offset
	w.push(e)
	return nil, false
}

// join lets done hear the outcome of an offset that is pending: a lane that has been
// closed since has sent it. w.mu is held.
func (w *writer) join(offset int64, done func(error)) (err error, settled bool) { //nolint:revive // as in take
	waiting := w.pending[w.first:]
	i := sort.Search(len(waiting), func(i int) bool { return waiting[i].offset >= offset })
	if i == len(waiting) || waiting[i].offset != offset {
		return lane.Refuse("out_of_order", fmt.Errorf("offset %d comes after %d", offset, w.high)), true
	}
	before := waiting[i].done
	waiting[i].done = func(err error) {
		before(err)
		w.users.leave()
		done(err)
	}
	return nil, false
}

func (w *writer) otherSource(holds string) error {
	return lane.Refuse("other_source",
		fmt.Errorf("partition %d of %s holds messages of %s, effectively_once allows no others", w.key.partition, w.key.topic, holds))
}

// run stores what is pending until the writer is closed.
func (w *writer) run() {
	defer close(w.ended)
	defer w.end()
	var wait time.Duration
	for w.ctx.Err() == nil {
		pub, err := w.open()
		if err == nil {
			w.write(pub)
		}
		w.shut(pub)
		switch _, final := lane.Refused(err); {
		case err == nil:
			wait = 0
		case final:
			w.refuseAll(err)
			<-w.ctx.Done()
		default:
			w.setTrouble(err)
			wait = min(max(2*wait, 50*time.Millisecond), 2*time.Second)
			w.sleep(wait + rand.N(wait/5+1))
		}
	}
}

// refuseAll ends a writer whose topic takes no message of its partition.
func (w *writer) refuseAll(why error) {
	w.mu.Lock()
	w.refuse = why
	w.setPhase(phaseRefusing)
	gone := w.takeAll()
	w.mu.Unlock()
	w.settle(gone, why)
}

// open opens the producer, and finds out what is stored. With an error the publisher is
// to be closed, too, if there is one.
func (w *writer) open() (*messaging.Publisher, error) {
	topic, err := w.topic()
	if err != nil {
		return nil, err
	}
	// No bound but ours: an attempt that is given up would go on waiting for its turn
	// behind, and have it before the next.
	late := time.AfterFunc(openTimeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.phase == phaseOpening && w.pub == nil {
			w.trouble = fmt.Errorf("%s is not open for writing yet: another producer has it, or its broker does not answer", topic)
		}
	})
	pub, err := w.sink.client.Publisher(w.ctx, topic, w.profile())
	late.Stop()
	if errors.Is(err, messaging.ErrTopicTerminated) {
		return nil, lane.Refuse("terminated", err)
	}
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.pub = pub
	w.mu.Unlock()
	w.proven = false
	return pub, w.look(topic)
}

// profile is the sink's, with what one entry at a time needs.
func (w *writer) profile() messaging.Profile {
	p := w.sink.cfg.Profile
	if p.ProducerName == "" {
		p.ProducerName = "pigeonhole"
	}
	p.ProducerName += "-" + w.source // its offsets are what the broker knows the name by
	p.Routing, p.Admission = messaging.RouteKeyHash, messaging.Block
	p.Ownership = messaging.WaitForOwnership
	p.GroupCommit, p.Linger = true, time.Hour // an entry ends where we say
	p.BatchBytes = 1 << 20
	p.MaxPendingRecords, p.MaxPendingBytes = max(p.MaxPendingRecords, p.BatchRecords), max(p.MaxPendingBytes, 4*entryBytes)
	return p
}

const readTimeout = 10 * time.Second

// topic is the name of the partition's own topic.
func (w *writer) topic() (string, error) {
	asking, cancel := context.WithTimeout(w.ctx, openTimeout)
	defer cancel()
	topics, err := w.sink.client.Partitions(asking, w.key.topic)
	switch {
	case err != nil:
		return "", err
	case int(w.key.partition) >= len(topics):
		return "", lane.Refuse("no_partition", fmt.Errorf("%s has %d partitions, the message is of number %d", w.key.topic, len(topics), w.key.partition))
	default:
		return topics[w.key.partition], nil
	}
}

// look settles what turns out to be stored.
func (w *writer) look(topic string) error {
	reading, cancel := context.WithTimeout(w.hard, readTimeout)
	defer cancel()
	last, err := w.sink.client.Last(reading, topic)
	if err != nil {
		return fmt.Errorf("what is stored cannot be read, so nothing is written: %w", err)
	}
	offset := int64(-1)
	w.last = messaging.MessageID{}
	if last != nil {
		w.last = last.ID
		at, ok := message.Place(last.Properties)
		switch {
		case !ok || at.Offset < 0:
			w.log.Warn("the last message is not of a Pigeonhole: deduplication alone tells what is stored", zap.Stringer("message_id", last.ID))
		case at.Partition != w.key.partition:
			return lane.Refuse("other_source", fmt.Errorf("partition %d of %s holds messages of partition %d of %s",
				w.key.partition, w.key.topic, at.Partition, at.Topic))
		case at.Topic != w.source:
			return w.otherSource(at.Topic)
		default:
			offset = at.Offset
		}
	}
	w.mu.Lock()
	w.trouble = nil
	n := sort.Search(len(w.pending)-w.first, func(i int) bool { return w.pending[w.first+i].offset > offset })
	stored := w.takeFirst(n)
	w.stored = max(w.stored, offset)
	w.high = max(w.high, offset)
	if w.phase != phaseOpen {
		w.setPhase(phaseOpen)
	}
	w.mu.Unlock()
	w.settle(stored, nil)
	return nil
}

// write stores what is pending, entry after entry, until there is doubt about one, or
// the writer closes and nothing is left.
func (w *writer) write(pub *messaging.Publisher) {
	for w.gather() {
		id, err := pub.PublishEntry(w.hard, w.records...)
		switch {
		case errors.Is(err, messaging.ErrTooLarge) && len(w.group) == 1:
			w.finish(outcome(err))
		case errors.Is(err, messaging.ErrTooLarge): // all of them together
			w.limit = max(len(w.group)/2, 1)
		case err != nil:
			w.doubt(err)
			return
		case !id.Deduplicated() && !w.last.IsZero() && id.Compare(w.last) <= 0:
			w.doubt(fmt.Errorf("the receipt names %s, and %s is stored", id, w.last))
			return
		case !id.Deduplicated():
			w.proven, w.last, w.limit = true, id, min(2*w.limit, w.sink.cfg.Profile.BatchRecords)
			w.finish(nil)
		case w.proven: // the client has sent it again
			w.doubt(errors.New("an entry was answered as a duplicate"))
			return
		default: // see above, 3: it is stored, and what is behind it may be
			w.finish(nil)
			if err := w.look(pub.Topic()); err != nil {
				w.doubt(err)
				return
			}
		}
	}
}

// gather takes the next entry's messages into w.group, and waits for some. It returns
// false when the writer closes and none are left.
func (w *writer) gather() bool {
	for {
		w.mu.Lock()
		waiting := w.pending[w.first:]
		limit := w.limit
		if !w.proven {
			limit = 1
		}
		n, bytes := 0, 0
		for n < min(len(waiting), limit) {
			bytes += entrySize(&waiting[n].record)
			if n > 0 && bytes > entryBytes {
				break
			}
			n++
		}
		w.group = append(w.group[:0], waiting[:n]...)
		w.mu.Unlock()
		if n > 0 {
			break
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
			if w.empty() {
				return false
			}
		}
	}
	w.records = w.records[:0]
	for _, e := range w.group {
		e.record.SequenceID = &e.offset
		w.records = append(w.records, &e.record)
	}
	w.records[0].SequenceID = &w.group[len(w.group)-1].offset // the entry's
	return true
}

// entrySize is at least what r takes in a batch.
func entrySize(r *messaging.Record) int {
	n := len(r.Key) + len(r.Payload) + messageOverhead
	for k, v := range r.Properties {
		n += len(k) + len(v) + headerOverhead
	}
	return n
}

// finish gives the group its outcome.
func (w *writer) finish(err error) {
	w.mu.Lock()
	done := w.takeFirst(len(w.group))
	w.mu.Unlock()
	w.settle(done, err)
}

// doubt notes that it is not known what became of the group.
func (w *writer) doubt(err error) {
	w.limit = max(len(w.group)/2, 1)
	w.mu.Lock()
	w.setPhase(phaseOpening)
	w.mu.Unlock()
	w.log.Info("looking again at what is stored", zap.Error(err))
}

// shut closes the producer: what its client still has of the group cannot be sent
// afterwards, and its outcomes have been told.
func (w *writer) shut(pub *messaging.Publisher) {
	if pub == nil {
		return
	}
	w.mu.Lock()
	w.pub = nil
	w.mu.Unlock()
	closing, cancel := context.WithTimeout(w.hard, w.sink.cfg.CloseTimeout)
	defer cancel()
	// What is left in it is pending here, so that it leaves something is no news.
	if err := pub.Close(closing); err != nil && !errors.Is(err, messaging.ErrUnacknowledged) {
		w.log.Warn("cannot close a producer cleanly", zap.Error(err))
	}
}

// end gives what is left its outcome.
func (w *writer) end() {
	w.mu.Lock()
	w.setPhase(phaseEnded)
	gone := w.takeAll()
	w.mu.Unlock()
	w.settle(gone, messaging.ErrUnacknowledged)
	w.kill()
}

// close waits until ctx ends for what is pending to be stored; the rest is not known to be.
func (w *writer) close(ctx context.Context) {
	w.cancel()
	select {
	case <-w.ended:
	case <-ctx.Done():
		w.kill()
		<-w.ended
	}
}

// takeFirst removes the first n of what is pending, and returns who waits for them.
// w.mu is held.
func (w *writer) takeFirst(n int) []func(error) {
	gone := make([]func(error), n)
	for i := range gone {
		e := w.pending[w.first]
		gone[i], w.stored = e.done, e.offset
		w.pending[w.first] = nil
		w.first++
		w.sink.exacts.put(e)
	}
	if w.first == len(w.pending) {
		w.pending, w.first = w.pending[:0], 0
	}
	return gone
}

// takeAll empties pending and returns who waits. w.mu is held.
func (w *writer) takeAll() []func(error) {
	stored := w.stored
	gone := w.takeFirst(len(w.pending) - w.first)
	w.stored, w.high = stored, stored
	return gone
}

// settle gives outcomes.
func (w *writer) settle(waiting []func(error), err error) {
	for _, done := range waiting {
		w.users.leave()
		done(err)
	}
}

func (w *writer) push(e *exactSend) {
	if w.first > 0 && len(w.pending) == cap(w.pending) {
		n := copy(w.pending, w.pending[w.first:])
		clear(w.pending[n:])
		w.pending, w.first = w.pending[:n], 0
	}
	w.pending = append(w.pending, e)
}

func (w *writer) empty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first == len(w.pending)
}

// setPhase tells those who wait. w.mu is held.
func (w *writer) setPhase(p phase) {
	w.phase = p
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *writer) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
	}
}

func (w *writer) setTrouble(err error) {
	w.mu.Lock()
	w.trouble = err
	w.mu.Unlock()
}

func (w *writer) problem() error {
	w.mu.Lock()
	trouble, pub := w.trouble, w.pub
	w.mu.Unlock()
	if trouble != nil || pub == nil {
		return trouble
	}
	if err := pub.Trouble(); !errors.Is(err, messaging.ErrProducerLost) {
		return err
	}
	return nil // it is being opened anew
}

// explain adds what is in the way to err.
func (w *writer) explain(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble != nil {
		return fmt.Errorf("%w (%w)", err, w.trouble)
	}
	return err
}

// exactPool keeps exactSends for use again.
type exactPool struct{ p sync.Pool }

func (l *exactPool) get() *exactSend {
	if e, ok := l.p.Get().(*exactSend); ok {
		return e
	}
	return new(exactSend)
}

func (l *exactPool) put(e *exactSend) {
	e.record, e.done = messaging.Record{}, nil
	l.p.Put(e)
}
