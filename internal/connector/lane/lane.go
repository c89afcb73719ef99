// Package lane moves messages from one partition of a source to a sink, in order,
// within bounds, and tells the source up to where they have been stored.
//
// The way of a message: Offer -> prepared by the route -> the lane's window -> the
// sink -> its outcome -> the watermark, which rises to the last message before which
// all are done with -> the source's commit. What the sink could not store is sent
// again in place, with everything behind it; what it will never store goes to the
// dead letters.
package lane

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// ErrClosed is returned by Offer once the lane is closed.
var ErrClosed = errors.New("the lane is closed")

// ErrLoop is returned by a route's Prepare for a message that has been here before.
var ErrLoop = errors.New("the message has passed here before")

// Lane is the way of one partition's messages. Offer is called from one goroutine at a
// time; Close and Abandon may be called at any time, from any.
//
// Goroutines: the source's offers and sends. The sink's, whichever they are, note
// outcomes. The lane's own (run) commits and sends again; another stores dead letters
// while there are some.
type Lane struct {
	set        *Set
	name       string
	commitEach int
	log        *zap.Logger

	ctx    context.Context // ends with the lane
	cancel context.CancelCauseFunc
	wake   chan struct{} // for run: something to send again or to commit
	room   chan struct{} // for Offer: something has changed that it may wait for
	ended  chan struct{} // closed once run has: nothing is sent again any more

	mu        sync.Mutex
	window    ring // in the order of offering, without those before the watermark
	bytes     int64
	own       amount        // may be held whatever others do
	borrowed  amount        // is held beyond
	out       int           // sent, outcome not known
	broken    error         // the first failure; until all outcomes are known and all is sent again
	repeating bool          // what failed is being sent again
	well      bool          // something was stored since
	refused   []*entry      // to be stored as dead letters
	storing   bool          // storeDeadLetters runs
	low, told int64         // watermark; what was committed of it
	moved     int           // messages that it passed since, for CommitEach
	drained   chan struct{} // closed once the window is empty; nil unless Drain waits
	free      *entry
	seq       uint64

	fence  sync.Mutex // held while committing
	fenced bool
	commit func(int64) error

	prepare Prepare
	closed  func() // once, when nothing is sent any more
}

// entry is one message in the window.
type entry struct {
	m        *message.Message
	to       string
	position int64
	size     int64
	state    state
	sampled  bool
	sent     time.Time // of sampled ones
	err      error     // why it was refused
	done     func(error)
	next     *entry // of the free list
}

type state uint8

const (
	stateSent    state = iota // the sink has it
	stateStored               // the sink has stored it: sent again when one before it failed
	stateDone                 // filtered, looped or kept as a dead letter: never sent
	stateFailed               // to be sent again
	stateRefused              // to be stored as a dead letter
)

const sampleEvery = 64

func newLane(s *Set, name string, commit func(int64) error) *Lane {
	l := &Lane{
		set: s, name: name, commit: commit, log: s.route.Log.With(zap.String("lane", name)),
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), ended: make(chan struct{}), low: -1, told: -1,
	}
	l.prepare, l.closed = s.route.Prepare()
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Offer takes m, whose place in the source is position. Positions ascend but may have
// gaps. It blocks while the lane is full, the route paused or the sink in trouble, at
// most until ctx ends or the lane is closed; then m was not taken.
//
// While it blocks the source should stop fetching for this partition, and for no
// other.
func (l *Lane) Offer(ctx context.Context, m *message.Message, position int64) error {
	to, keep, err := l.prepare(ctx, m)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	e, err := l.admit(ctx, m, to, position, verdict(keep, err), err)
	if err != nil {
		return err
	}
	if e != nil {
		l.send(ctx, e)
	}
	return nil
}

// verdict is the state in which a prepared message enters the window.
func verdict(keep bool, err error) state {
	switch {
	case err != nil && !errors.Is(err, ErrLoop):
		return stateRefused
	case err != nil || !keep:
		return stateDone
	default:
		return stateSent
	}
}

// admit waits for room and puts the message into the window. It returns the entry if
// it is to be sent.
func (l *Lane) admit(ctx context.Context, m *message.Message, to string, position int64, as state, why error) (*entry, error) {
	size := m.Size()
	for {
		if paused := l.set.paused.Load(); paused != nil {
			if err := l.await(ctx, *paused); err != nil {
				return nil, err
			}
			continue
		}
		l.mu.Lock()
		if l.ctx.Err() != nil {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		if l.broken == nil && !l.repeating && l.hasRoom(size) {
			break
		}
		l.mu.Unlock()
		if err := l.await(ctx, l.room); err != nil {
			return nil, err
		}
	}
	defer l.mu.Unlock()
	e := l.newEntry()
	e.m, e.to, e.position, e.size, e.state = m, to, position, size, as
	l.bytes += size
	l.set.messages.Add(1)
	l.set.bytes.Add(size)
	l.window.push(e)
	l.borrow()
	l.seq++
	if e.sampled = l.seq%sampleEvery == 0; e.sampled && as == stateSent {
		l.observeArrival(e)
	}
	switch as {
	case stateSent:
		l.out++
		return e, nil
	case stateRefused:
		l.refuse(e, why)
	default:
		l.skip(why)
		l.advance()
	}
	return nil, nil //nolint:nilnil // nothing to send is no error
}

// await waits for c.
func (l *Lane) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return ErrClosed
	}
}

// skip counts a message that goes nowhere.
func (l *Lane) skip(why error) {
	l.set.filtered.Add(1)
	if why != nil {
		l.set.route.Metrics.looped.Inc()
	} else {
		l.set.route.Metrics.filtered.Inc()
	}
}

func (l *Lane) observeArrival(e *entry) {
	from, metrics := e.m.From, l.set.route.Metrics
	e.sent = time.Now()
	if stored := from.Stored; !stored.IsZero() {
		metrics.pull.Observe(max(from.Received.Sub(stored).Seconds(), 0))
	} else if !e.m.Time.IsZero() {
		metrics.pull.Observe(max(from.Received.Sub(e.m.Time).Seconds(), 0))
	}
	metrics.queue.Observe(e.sent.Sub(from.Received).Seconds())
}

// send hands an entry to the sink. Its outcome comes to note.
func (l *Lane) send(ctx context.Context, e *entry) {
	sampled, began := e.sampled, e.sent // e may be another message's when Send returns
	l.set.route.Sink.Send(ctx, e.to, e.m, e.done)
	if sampled {
		l.set.route.Metrics.send.Observe(time.Since(began).Seconds())
	}
}

// note notes an outcome of the sink's.
func (l *Lane) note(e *entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	_, final := Refused(err)
	switch {
	case err == nil:
		e.state, l.well = stateStored, true
		l.set.stored.Add(1)
		metrics := l.set.route.Metrics
		metrics.stored.Inc()
		metrics.bytes.Add(float64(e.size))
		if e.sampled {
			metrics.write.Observe(time.Since(e.sent).Seconds())
		}
		l.advance()
	case final:
		l.refuse(e, err)
	default:
		e.state = stateFailed
		if l.broken == nil {
			l.broken = err
		}
	}
	if l.broken != nil && l.out == 0 {
		l.signal(l.wake)
	}
}

// advance raises the watermark over all at the window's head that is stored or done
// with. l.mu is held. What is stored behind a failure stays in the window: it is sent
// again, too, to come after what failed.
func (l *Lane) advance() {
	moved, freed := 0, int64(0)
	for l.window.len > 0 {
		e := l.window.head()
		if e.state != stateStored && e.state != stateDone {
			break
		}
		l.window.pop()
		l.bytes -= e.size
		freed += e.size
		l.low = e.position
		l.recycle(e)
		moved++
	}
	if moved == 0 {
		return
	}
	l.moved += moved
	l.borrow()
	l.set.release(moved, freed)
	l.signal(l.room)
	if l.commitEach > 0 && l.moved >= l.commitEach {
		l.signal(l.wake)
	}
	if l.window.len == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
}

func (l *Lane) signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run commits and sends again until the lane is closed.
func (l *Lane) run() {
	defer close(l.ended)
	defer l.set.remove(l)
	defer l.set.sending.over(l, ErrClosed)
	defer l.set.dead.over(l, ErrClosed)
	ticker := time.NewTicker(l.set.cfg.CommitEvery)
	defer ticker.Stop()
	var backoff time.Duration
	troubled := false
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
		case <-ticker.C:
		}
		l.tell()
		if err := l.failure(); err != nil {
			backoff, troubled = l.set.cfg.longer(backoff), true
			if !errors.Is(err, context.Canceled) { // of an Offer that was given up
				l.set.sending.note(l, err)
			}
			if l.sleep(backoff) {
				l.repeat()
			}
		} else if troubled && l.recovered() {
			l.set.sending.over(l, nil)
			backoff, troubled = 0, false
		}
	}
}

// failure returns what broke the lane once every outcome is known.
func (l *Lane) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out > 0 {
		return nil
	}
	return l.broken
}

// recovered reports whether something was stored since the last failure, or nothing is to be sent again:
// what failed was refused then.
func (l *Lane) recovered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken == nil && (l.well || l.out == 0)
}

// repeat sends what failed again, and what the sink has stored behind it, in order. What
// goes nowhere stays where it is. It ends early when that fails again.
func (l *Lane) repeat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken, l.well, l.repeating = nil, false, true
	defer func() { l.repeating = false }()
	again := false
	for i := range l.window.len {
		e := l.window.at(i)
		again = again || e.state == stateFailed
		if again && e.state == stateStored {
			e.state = stateFailed // it must come after what failed
		}
	}
	for i := 0; i < l.window.len && l.broken == nil && l.ctx.Err() == nil; i++ {
		e := l.window.at(i)
		if e.state != stateFailed {
			continue
		}
		e.state, e.sampled = stateSent, false
		l.out++
		l.set.resent.Add(1)
		before := l.window.popped
		l.mu.Unlock()
		l.send(l.ctx, e)
		l.mu.Lock()
		// What has left the window meanwhile is what was at its head: i and what goes nowhere behind it, too.
		i = max(i-(l.window.popped-before), -1)
	}
	if l.broken == nil {
		l.signal(l.room)
	} else if l.out == 0 {
		l.signal(l.wake)
	}
}

// stop ends the route, and this lane at once: its window will not empty any more.
func (l *Lane) stop(why error) {
	l.set.route.Stop(why)
	l.cancel(why)
}

// tell commits the watermark if it is above what was committed: run and Close may be
// here at once, and the one that looked first come last.
func (l *Lane) tell() {
	l.mu.Lock()
	low := l.low
	l.moved = 0
	l.mu.Unlock()
	l.fence.Lock()
	defer l.fence.Unlock()
	if l.fenced || low <= l.told {
		return
	}
	if err := l.commit(low); err != nil {
		l.log.Warn("cannot commit, will try again", zap.Int64("position", low), zap.Error(err))
		return
	}
	l.told = low
}

// Drain waits until the messages that the lane took are done with, at most until ctx ends
// or the lane is closed. Meanwhile nothing should be offered.
func (l *Lane) Drain(ctx context.Context) error {
	l.mu.Lock()
	if l.window.len == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.drained == nil {
		l.drained = make(chan struct{})
	}
	drained := l.drained
	l.mu.Unlock()
	return l.await(ctx, drained)
}

// Close takes no more messages, waits until those it took are done with or ctx ends,
// and commits what can be committed. Afterwards nothing is committed or sent any more:
// another lane may have the partition, here or in another process. It returns ctx's error
// when messages were left.
func (l *Lane) Close(ctx context.Context) error {
	err := l.Drain(ctx)
	l.cancel(ErrClosed)
	<-l.ended
	l.tell()
	l.shut()
	return err
}

// Abandon closes the lane without waiting for outcomes and without committing, as when the
// connection that its positions belong to is gone. Nothing is sent afterwards.
func (l *Lane) Abandon() {
	l.cancel(ErrClosed)
	<-l.ended
	l.shut()
}

func (l *Lane) shut() {
	l.fence.Lock()
	defer l.fence.Unlock()
	if l.fenced {
		return
	}
	l.fenced = true
	if l.closed != nil {
		l.closed()
	}
	l.drop()
}

// drop lets go of what is left in the window. What the sink still has of it is the
// sink's.
func (l *Lane) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := l.window.len, l.bytes
	l.window, l.bytes = ring{}, 0
	l.borrow()
	l.set.release(n, bytes)
}

// sleep waits d and a little more or less; it reports whether the lane lives.
func (l *Lane) sleep(d time.Duration) bool {
	t := time.NewTimer(d + time.Duration(float64(d)*(rand.Float64()-.5)*.4))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// holding returns what the lane holds, and since when the oldest has waited.
func (l *Lane) holding() (n int, bytes int64, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.window.len > 0 {
		from := l.window.head().m.From
		if since = from.Stored; since.IsZero() {
			since = from.Received
		}
	}
	return l.window.len, l.bytes, since
}

// newEntry returns an entry, a used one where there is one. l.mu is held.
func (l *Lane) newEntry() *entry {
	e := l.free
	if e == nil {
		e = new(entry)
		e.done = func(err error) { l.note(e, err) }
		return e
	}
	l.free, e.next = e.next, nil
	return e
}

func (l *Lane) recycle(e *entry) {
	e.m, e.to, e.err = nil, "", nil
	e.next, l.free = l.free, e
}
