package pulsar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// writer writes one partition of one topic. Lanes put messages in; its own goroutine
// (run) stores them.
type writer struct {
	sink   *Sink
	key    exactKey
	source sourceTopic
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
	pub     *messaging.EntryWriter
	stored  int64        // the highest offset known to be stored, or refused; -1 for none
	high    int64        // the highest offset that was taken, if above stored
	pending []*exactSend // pending[first:] is taken and not known to be stored, in order
	first   int

	// Only run uses what follows.
	limit   int // of an entry's messages: less after doubt, which a broker with small messages raises
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
	err, known := w.take(m, done)
	if known {
		w.users.leave()
		done(err)
		return
	}
	w.signal()
}

// take puts m behind what is pending, unless its outcome is known.
func (w *writer) take(m *message.Message, done func(error)) (err error, known bool) { //nolint:revive // an outcome, not a failure
	w.mu.Lock()
	defer w.mu.Unlock()
	offset := m.From.Offset
	switch {
	case w.phase == phaseEnded:
		return ErrStopped, true
	case w.phase == phaseRefusing:
		return w.refuse, true
	case w.source != sourceOf(&m.From):
		return w.takenBy(sourceOf(&m.From)), true
	case offset <= w.stored:
		return nil, true
	case offset <= w.high:
		return w.join(offset, done)
	}
	e := w.sink.exacts.get()
	e.offset, e.done = offset, done
	key, payload, properties := m.Pulsar()
	e.record = messaging.Record{Key: key, OrderingKey: m.OrderingKey, Payload: payload, Properties: properties, EventTime: eventTime(m)}
	w.high = offset
	w.push(e)
	return nil, false
}

// join lets done hear the outcome of an offset that is pending: a lane that has been
// closed since has sent it. w.mu is held.
func (w *writer) join(offset int64, done func(error)) (err error, known bool) { //nolint:revive // as in take
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

// run stores what is pending until the writer is closed.
func (w *writer) run() {
	defer close(w.ended)
	defer w.end()
	var wait time.Duration
	for w.ctx.Err() == nil {
		pub, err := w.open()
		var opened int64
		if err == nil {
			opened = pub.Stored()
			w.write(pub)
		}
		advanced := err == nil && pub.Stored() > opened
		w.shut(pub)
		switch _, final := lane.Refused(err); {
		case advanced:
			wait = 0
		case err == nil: // doubt about the first entry: each attempt can end a connection that others share
			wait = pause(wait)
			w.sleep(wait)
		case final:
			w.refuseAll(err)
			<-w.ctx.Done()
		default:
			w.setTrouble(err)
			wait = pause(wait)
			w.sleep(wait)
		}
	}
}

// pause is how long to wait behind an attempt that has stored nothing, after the pause before.
func pause(before time.Duration) time.Duration {
	wait := min(max(2*before, 50*time.Millisecond), 2*time.Second)
	return wait + rand.N(wait/5+1)
}

// refuseAll ends a writer whose topic takes no message of its partition.
func (w *writer) refuseAll(why error) {
	w.mu.Lock()
	w.refuse = why
	w.setPhase(phaseRefusing)
	gone := w.takeAll()
	w.mu.Unlock()
	w.tell(gone, why)
}

// open takes the partition, and finds out what is stored.
func (w *writer) open() (*messaging.EntryWriter, error) {
	topic, err := w.topic()
	if err != nil {
		return nil, err
	}
	// No bound but ours: it waits as long as another has the partition.
	late := time.AfterFunc(openTimeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.phase == phaseOpening && w.pub == nil {
			w.trouble = fmt.Errorf("%s is not open for writing yet: another producer has it, or its broker does not answer", topic)
		}
	})
	pub, err := w.sink.client.EntryWriter(w.ctx, topic, w.config())
	late.Stop()
	if errors.Is(err, messaging.ErrTopicTerminated) {
		return nil, lane.Refuse("terminated", err)
	}
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.pub, w.trouble = pub, nil
	w.mu.Unlock()
	w.advance(pub.Stored())
	w.mu.Lock()
	w.setPhase(phaseOpen)
	w.mu.Unlock()
	return pub, nil
}

// config is what the library needs to know. Its offsets are what the broker knows a producer's
// name by, so that there is one for each source topic.
func (w *writer) config() messaging.EntryWriterConfig {
	p := w.sink.cfg.Profile
	name := p.ProducerName
	if name == "" {
		name = "pigeonhole"
	}
	return messaging.EntryWriterConfig{
		Name: w.source.producer(name), Position: w.position,
		Label: p.Name, Compression: p.Compression, MaxRecords: p.BatchRecords, AckTimeout: p.AckTimeout,
	}
}

// position is the offset that a message of the partition comes from.
func (w *writer) position(d *messaging.Delivery) (int64, error) {
	at, ok := message.Place(d.Properties)
	switch {
	case !ok || at.Offset < 0:
		w.log.Warn("the last message is not of a Pigeonhole: deduplication alone tells what is stored", zap.Stringer("message_id", d.ID))
		return -1, nil
	case at.ID != "" && slices.Contains(w.sink.cfg.FormerSources, at.ID) && at.ID != w.source.id:
		w.log.Info("going on behind the messages of a former source topic", zap.String("holds", sourceOfLast(&at).String()), zap.Stringer("source", w.source))
		return -1, nil
	case at.Partition != w.key.partition:
		return 0, lane.Refuse("other_source", fmt.Errorf("partition %d of %s holds messages of partition %d of %s",
			w.key.partition, w.key.topic, at.Partition, at.Topic))
	case !w.source.is(sourceOfLast(&at)):
		return 0, w.otherSource(sourceOfLast(&at))
	default:
		return at.Offset, nil
	}
}

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

// advance gives everything up to offset its outcome: it is stored.
func (w *writer) advance(offset int64) {
	w.mu.Lock()
	n := sort.Search(len(w.pending)-w.first, func(i int) bool { return w.pending[w.first+i].offset > offset })
	stored := w.takeFirst(n)
	w.stored = max(w.stored, offset)
	w.high = max(w.high, offset)
	w.mu.Unlock()
	w.tell(stored, nil)
}

// write stores what is pending, entry after entry, until there is doubt about one, or
// the writer closes and nothing is left.
func (w *writer) write(pub *messaging.EntryWriter) {
	for w.gather() {
		err := pub.Store(w.hard, w.records...)
		w.advance(pub.Stored())
		switch {
		case err == nil:
			w.limit = min(2*w.limit, w.sink.cfg.Profile.BatchRecords)
		case errors.Is(err, messaging.ErrInDoubt) || !errors.Is(err, messaging.ErrTooLarge):
			w.doubt(err)
			return
		case len(w.group) == 1:
			w.finish(outcome(err))
		default: // all of them together
			w.limit = max(len(w.group)/2, 1)
		}
	}
}

// gather takes the next entry's messages into w.group, and waits for some. It returns
// false when the writer closes and none are left.
func (w *writer) gather() bool {
	for {
		w.mu.Lock()
		waiting := w.pending[w.first:]
		n, bytes := 0, 0
		for n < min(len(waiting), w.limit) {
			bytes += messaging.EntryBytes(&waiting[n].record)
			if n > 0 && bytes > messaging.MaxEntryBytes {
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
	return true
}

// finish gives the group, of one, its outcome.
func (w *writer) finish(err error) {
	w.mu.Lock()
	done := w.takeFirst(len(w.group))
	w.mu.Unlock()
	w.tell(done, err)
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
func (w *writer) shut(pub *messaging.EntryWriter) {
	if pub == nil {
		return
	}
	w.mu.Lock()
	w.pub = nil
	w.mu.Unlock()
	closing, cancel := context.WithTimeout(w.hard, w.sink.cfg.CloseTimeout)
	defer cancel()
	if err := pub.Close(closing); err != nil {
		w.log.Warn("cannot close a producer cleanly", zap.Error(err))
	}
}

// end gives what is left its outcome.
func (w *writer) end() {
	w.mu.Lock()
	w.setPhase(phaseEnded)
	gone := w.takeAll()
	w.mu.Unlock()
	w.tell(gone, messaging.ErrUnacknowledged)
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

// tell gives those who wait the outcome.
func (w *writer) tell(waiting []func(error), err error) {
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
