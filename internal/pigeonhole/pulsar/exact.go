package pulsar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Effectively once: each message of a source partition is stored once in its partition
// of the destination, whatever ends in between: this process, the broker, connections.
//
// The destination itself says what is stored. A partition is written by one producer at
// a time, in the order of the source's offsets, so the offset in the last stored
// message's provenance says it all: what is up to it is stored, what is behind it is
// not. A writer opens its producer, reads that message, drops what it is sent up to
// there, and goes on behind it. Whenever it does not know what became of messages that
// it sent (its producer was lost), it does the same again.
//
// What has to hold for that, and what makes it hold:
//
//  1. Nobody else writes between our reading and our writing. The producer is exclusive
//     and is open before the reading: a broker has no other then, and refuses to let a
//     fenced one back in.
//
//  2. Nothing that was sent before lands after our reading. When a process is killed its
//     connection ends, the broker drops its producer at once, and lets ours in, while
//     entries of the old one may still be on their way to the bookies: they are not the
//     last message yet, and will be stored after we looked. Waiting a while would make
//     that unlikely. Deduplication makes it impossible: the name of the producer is
//     always the same, and the broker knows the highest sequence id it has pushed
//     towards the bookies for a name, and the highest that is stored. It told our
//     producer the latter when it was opened, and ours goes on with the next id. If
//     anything is pushed and not stored at that moment, it has that id or a higher one,
//     so the broker takes our first batch for a duplicate: it answers that it does not
//     know yet, for which the client connects again and repeats, and once the other is
//     stored, that ours is a duplicate (see MessageID.Deduplicated). So the first
//     message of a new producer goes alone (it "proves" the producer), and if it is
//     answered like that, the writer opens another producer and reads again. Once it is
//     answered with a place of its own, nothing older can come any more: brokers push
//     in the order in which they take, and take from one producer.
//
//     The first message must go alone because a batch is recorded by its first sequence
//     id: the first of many could be dropped and a later one, whose id is above what was
//     pushed, stored, which would be a gap.
//
//  3. Within one producer's life nothing is stored twice. When a connection breaks or a
//     broker restarts, the client sends the same batches with the same ids again, and
//     deduplication drops those that were stored: brokers recover its state with the
//     topic, before producers connect. Those are answered as duplicates, too, which is
//     then the truth: they are ours, of this life.
//
//  4. A lost producer is not replaced underneath, but reported (FailOnLoss), and closed
//     before another is opened.
//
// Without deduplication on the broker 2 and 3 do not hold: a connection that breaks can
// store what was under way twice, and nothing here can see it. After the last message
// was removed by retention a writer cannot know either; it then says so, and waits.
//
// An offset is compared with others of the same topic only. A source topic that is
// deleted and made anew begins at 0 again, and would be taken for stored: the source's
// gap detection is what notices that.

// exactIdle is the longest idle_timeout under effectively_once.
const exactIdle = 5 * time.Second

// producerName is what all writers are called: two of one topic are one after the other.
const producerName = "pigeonhole"

type exactKey struct {
	topic     string
	partition int32
}

// writer writes one partition of one topic.
type writer struct {
	sink  *Sink
	key   exactKey
	users users
	log   *zap.Logger

	ctx     context.Context // ends when it is to close
	cancel  context.CancelFunc
	closing context.Context // bounds closing; set before ctx ends
	ended   chan struct{}
	turn    chan struct{} // held by the one who sends: lanes of one partition may follow one another
	wake    chan struct{} // for run

	mu      sync.Mutex
	phase   phase
	changed chan struct{} // closed, and made anew, when phase changes
	refuse  error         // with phaseRefusing
	trouble error         // while opening
	pub     *messaging.Publisher
	source  string // the topic that its messages come from; "" while not known
	high    int64  // the highest offset that was taken or found; -1 for none
	pending []*exactSend
	first   int // pending[first:] is taken and not known to be stored, in order
	lost    bool
	proven  bool
}

type phase int

const (
	phaseOpening  phase = iota // or proving: nothing is taken
	phaseReady                 // the next message proves the producer
	phaseFlowing               // messages go straight to the producer
	phaseRefusing              // the topic takes no message of this partition
	phaseEnded
)

// exactSend is one message until it is stored. They are used again, as sendings are.
type exactSend struct {
	record  messaging.Record
	offset  int64
	w       *writer
	done    func(error)
	receipt func(messaging.MessageID, error)
	settled bool // had its outcome; leaves pending with those before it
	turned  bool // not taken by the publisher, because the caller's context ended
}

// Resume returns the highest offset that topic's partition holds of its source, ok false for none, from the moment on in which nobody but this sink
// can write there. A source may go on behind it: what it sends up to there is recognised as stored and answered with nil.
func (s *Sink) Resume(ctx context.Context, topic string, partition int32) (offset int64, ok bool, err error) {
	if s.cfg.Guarantee != effectivelyOnce {
		return 0, false, errors.New("the guarantee is not effectively_once")
	}
	if err := s.await(ctx); err != nil {
		return 0, false, err
	}
	w, err := s.writer(exactKey{topic, partition})
	if err != nil {
		return 0, false, err
	}
	defer w.users.leave()
	for {
		w.mu.Lock()
		phase, changed, high, refuse := w.phase, w.changed, w.high, w.refuse
		w.mu.Unlock()
		switch phase {
		case phaseReady, phaseFlowing:
			return high, high >= 0, nil
		case phaseRefusing:
			return 0, false, refuse
		case phaseEnded:
			return 0, false, ErrStopped
		case phaseOpening:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, false, w.explain(ctx.Err())
		}
	}
}

// Release closes the producers of topic's partition, "" for all topics, which otherwise happens once they are idle. Another process that takes the
// partition over need not wait then. Call it when the lane that sent to it is closed.
func (s *Sink) Release(topic string, partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, w := range s.exact {
		if key.partition == partition && (topic == "" || key.topic == topic) && w.users.free() {
			s.release(w)
		}
	}
}

// release closes a writer without users. s.mu is held.
func (s *Sink) release(w *writer) {
	delete(s.exact, w.key)
	s.closers.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.CloseTimeout)
		defer cancel()
		w.close(ctx)
	})
}

// sendExactly is Send under effectively_once.
func (s *Sink) sendExactly(ctx context.Context, to string, m *message.Message, done func(error)) {
	if m.From.Offset < 0 || m.From.Partition < 0 {
		done(lane.Refuse("no_offset", errors.New("effectively_once needs a source with partitions and offsets")))
		return
	}
	w, err := s.writer(exactKey{to, m.From.Partition})
	if err != nil {
		done(err)
		return
	}
	w.send(ctx, m, done)
}

// writer returns the writer of a partition, opening it when needed, and counts the
// caller as a user.
func (s *Sink) writer(key exactKey) (*writer, error) {
	s.mu.RLock()
	w, closed := s.exact[key], s.closed
	if w != nil {
		w.users.enter()
	}
	s.mu.RUnlock()
	switch {
	case closed:
		if w != nil {
			w.users.leave()
		}
		return nil, ErrStopped
	case w != nil:
		return w, nil
	case !messaging.ValidTopic(key.topic):
		return nil, lane.Refuse("bad_topic", fmt.Errorf("%q cannot be a topic of Pulsar", key.topic))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrStopped
	}
	w = s.exact[key]
	if w == nil {
		w = &writer{
			sink: s, key: key, high: -1,
			log:   s.o.Log.With(zap.String("topic", key.topic), zap.Int32("partition", key.partition)),
			ended: make(chan struct{}), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), changed: make(chan struct{}),
			closing: s.life,
		}
		w.ctx, w.cancel = context.WithCancel(s.life)
		w.users.used(time.Now())
		s.exact[key] = w
		go w.run()
	}
	w.users.enter()
	return w, nil
}

// send takes m, drops it when it is stored already, or waits until it can be taken. The
// caller is a user until m has its outcome.
func (w *writer) send(ctx context.Context, m *message.Message, done func(error)) {
	refused := func(err error) {
		w.users.leave()
		done(err)
	}
	if err := w.enter(ctx); err != nil {
		refused(err)
		return
	}
	defer func() { <-w.turn }()
	switch { // w.mu is held
	case w.source != "" && w.source != m.From.Topic:
		err := fmt.Errorf("partition %d of %s holds messages of %s, effectively_once allows no others", w.key.partition, w.key.topic, w.source)
		w.mu.Unlock()
		refused(lane.Refuse("other_source", err))
		return
	case m.From.Offset <= w.high:
		w.mu.Unlock()
		refused(nil) // it is stored
		return
	}
	before := w.high
	e := w.sink.exacts.get()
	e.w, e.done, e.offset, e.settled, e.turned = w, done, m.From.Offset, false, false
	key, payload, properties := m.Pulsar()
	e.record = messaging.Record{Key: key, Payload: payload, Properties: properties, EventTime: eventTime(m)}
	w.source, w.high = m.From.Topic, e.offset
	w.push(e)
	if w.phase == phaseReady {
		w.setPhase(phaseOpening) // until it has proved the producer
		w.mu.Unlock()
		w.signal()
		return
	}
	pub := w.pub
	w.mu.Unlock()
	pub.PublishAsync(ctx, &e.record, e.receipt)
	if ctx.Err() != nil { // it may not have been taken: then it is the last one, and nobody else's
		w.mu.Lock()
		if n := len(w.pending); n > w.first && w.pending[n-1] == e && e.turned {
			w.pending[n-1] = nil
			w.pending = w.pending[:n-1]
			w.high = before
			w.mu.Unlock()
			w.sink.exacts.put(e)
			refused(ctx.Err())
			return
		}
		w.mu.Unlock()
	}
}

// enter takes the turn once messages are taken, and returns with w.mu held.
func (w *writer) enter(ctx context.Context) error {
	for {
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return w.explain(ctx.Err())
		}
		w.mu.Lock()
		var err error
		switch w.phase {
		case phaseReady, phaseFlowing:
			return nil
		case phaseRefusing:
			err = w.refuse
		case phaseEnded:
			err = ErrStopped
		case phaseOpening:
		}
		changed := w.changed
		w.mu.Unlock()
		<-w.turn // run may need it
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return w.explain(ctx.Err())
		}
	}
}

// heard is a receipt. It does not block.
func (w *writer) heard(e *exactSend, id messaging.MessageID, err error) {
	w.mu.Lock()
	switch {
	case err == nil && !w.proven && id.Deduplicated():
		w.lost = true // see above: 2
	case err == nil || errors.Is(err, messaging.ErrTooLarge):
		w.proven = w.proven || err == nil
		proves := w.phase == phaseOpening
		done := e.done
		e.settled = true
		w.pop()
		w.mu.Unlock()
		if proves {
			w.signal()
		}
		w.users.leave()
		done(outcome(err))
		return
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		e.turned = true // send knows what to do
		w.mu.Unlock()
		return
	default:
		w.lost = true
	}
	w.mu.Unlock()
	w.signal()
}

// run keeps the producer until the writer is closed.
func (w *writer) run() {
	defer close(w.ended)
	defer w.end()
	var wait time.Duration
	for w.ctx.Err() == nil {
		if err := w.reopen(); err != nil {
			if _, final := lane.Refused(err); final {
				w.mu.Lock()
				w.refuse = err
				w.setPhase(phaseRefusing)
				gone := w.takeAll()
				w.mu.Unlock()
				w.fail(gone, err)
				<-w.ctx.Done()
				return
			}
			w.setTrouble(err)
			wait = min(max(2*wait, 50*time.Millisecond), 2*time.Second)
			w.sleep(wait + rand.N(wait/5+1))
			continue
		}
		w.setTrouble(nil)
		wait = 0
		w.work()
	}
}

// reopen closes the producer, if there is one, opens another, and finds out what is
// stored.
func (w *writer) reopen() error {
	w.mu.Lock()
	old := w.pub
	w.pub = nil
	w.mu.Unlock()
	if old != nil {
		// What it knows of outcomes it tells before Close returns.
		closing, cancel := context.WithTimeout(w.ctx, w.sink.cfg.CloseTimeout)
		_ = old.Close(closing)
		cancel()
		// A send that was on its way to it has returned behind this.
		w.turn <- struct{}{}
		<-w.turn
	}
	topic, err := w.topic()
	if err != nil {
		return err
	}
	profile := w.sink.cfg.Profile
	if profile.ProducerName == "" {
		profile.ProducerName = producerName
	}
	profile.Routing, profile.Admission = messaging.RouteKeyHash, messaging.Block
	profile.Access, profile.OnLoss = messaging.WaitForExclusiveAccess, messaging.FailOnLoss
	// No bound but ours: an attempt that is given up would go on waiting for its turn
	// behind, and have it before the next.
	late := time.AfterFunc(openTimeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.pub == nil {
			w.trouble = fmt.Errorf("%s is not open for writing yet: another producer has it, or its broker does not answer", topic)
		}
	})
	pub, err := w.sink.client.Publisher(w.ctx, topic, profile)
	late.Stop()
	if errors.Is(err, messaging.ErrTopicTerminated) {
		return lane.Refuse("terminated", err)
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.pub, w.lost, w.proven = pub, false, false
	w.mu.Unlock()
	reading, cancel := context.WithTimeout(w.ctx, readTimeout)
	defer cancel()
	last, err := w.sink.client.Last(reading, topic)
	if err != nil {
		return fmt.Errorf("what is stored cannot be read, so nothing is written: %w", err)
	}
	return w.found(last)
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

// found settles what turns out to be stored, and lets messages in behind it.
func (w *writer) found(last *messaging.Delivery) error {
	offset := int64(-1)
	if last != nil {
		at, ok := message.Place(last.Properties)
		switch {
		case !ok || at.Offset < 0:
			w.log.Warn("the last message is not of a Pigeonhole, nothing is taken for stored", zap.Stringer("message_id", last.ID))
		case at.Partition != w.key.partition:
			return lane.Refuse("other_source", fmt.Errorf("partition %d of %s holds messages of partition %d of %s",
				w.key.partition, w.key.topic, at.Partition, at.Topic))
		default:
			w.mu.Lock()
			known := w.source
			w.source = at.Topic
			w.mu.Unlock()
			if known != "" && known != at.Topic {
				return lane.Refuse("other_source", fmt.Errorf("partition %d of %s holds messages of %s", w.key.partition, w.key.topic, at.Topic))
			}
			offset = at.Offset
		}
	}
	w.mu.Lock()
	var stored []func(error)
	for _, e := range w.pending[w.first:] {
		if e.offset <= offset && !e.settled {
			e.settled = true
			stored = append(stored, e.done)
		}
	}
	w.pop()
	w.high = max(w.high, offset)
	if len(w.pending) == w.first {
		w.setPhase(phaseReady)
	}
	w.mu.Unlock()
	for _, done := range stored {
		w.users.leave()
		done(nil)
	}
	return nil
}

// work proves the producer with the first message there is, sends what else waits, and
// lets messages go straight to it, until it is lost or the writer closes.
func (w *writer) work() {
	proving := int64(-1) // the message that is to prove it
	for {
		w.mu.Lock()
		lost, pub := w.lost, w.pub
		waiting := slices.Clone(w.pending[w.first:])
		switch {
		case lost:
			w.setPhase(phaseOpening)
			w.mu.Unlock()
			return
		case w.phase == phaseOpening && !w.proven && len(waiting) > 0 && waiting[0].offset > proving:
			proving = waiting[0].offset // the one before, if any, was refused
			w.mu.Unlock()
			pub.PublishAsync(w.ctx, &waiting[0].record, waiting[0].receipt)
		case w.phase == phaseOpening && !w.proven && len(waiting) == 0:
			w.setPhase(phaseReady)
			w.mu.Unlock()
		case w.phase == phaseOpening && w.proven:
			w.mu.Unlock()
			for _, e := range waiting {
				pub.PublishAsync(w.ctx, &e.record, e.receipt)
			}
			w.mu.Lock()
			if !w.lost {
				w.setPhase(phaseFlowing)
			}
			w.mu.Unlock()
		default:
			w.mu.Unlock()
			if w.ctx.Err() != nil {
				return
			}
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
			return
		}
	}
}

// end gives what is left its outcome.
func (w *writer) end() {
	w.mu.Lock()
	w.setPhase(phaseEnded)
	pub, closing := w.pub, w.closing
	w.pub = nil
	w.mu.Unlock()
	if pub != nil {
		if err := pub.Close(closing); err != nil {
			w.log.Warn("cannot close a producer cleanly", zap.Error(err))
		}
	}
	w.mu.Lock()
	gone := w.takeAll()
	w.mu.Unlock()
	w.fail(gone, messaging.ErrUnacknowledged)
}

// close waits until ctx ends for what is under way, and gives the rest its outcome.
func (w *writer) close(ctx context.Context) {
	w.mu.Lock()
	w.closing = ctx
	w.mu.Unlock()
	w.cancel()
	<-w.ended
}

// takeAll empties pending and returns what had no outcome. w.mu is held.
func (w *writer) takeAll() []func(error) {
	var gone []func(error)
	for _, e := range w.pending[w.first:] {
		if !e.settled {
			gone = append(gone, e.done)
		}
	}
	w.pending, w.first = nil, 0
	return gone
}

func (w *writer) fail(gone []func(error), err error) {
	for _, done := range gone {
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

// pop removes what has its outcome from the head of pending. w.mu is held.
func (w *writer) pop() {
	for w.first < len(w.pending) && w.pending[w.first].settled {
		w.sink.exacts.put(w.pending[w.first])
		w.pending[w.first] = nil
		w.first++
	}
	if w.first == len(w.pending) {
		w.pending, w.first = w.pending[:0], 0
	}
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
	e := new(exactSend)
	e.receipt = func(id messaging.MessageID, err error) { e.w.heard(e, id, err) }
	return e
}

func (l *exactPool) put(e *exactSend) {
	e.record, e.done, e.w = messaging.Record{}, nil, nil
	l.p.Put(e)
}
