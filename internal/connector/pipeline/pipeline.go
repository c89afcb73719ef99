// Package pipeline moves the messages of one partition of a source to a sink. It keeps their order,
// bounds the messages in flight, and commits the watermark at the source.
//
// The path of a message: Offer -> the route's Prepare -> the pipeline's window -> the sink -> the
// sink's outcome -> the watermark -> the source's commit. The watermark is the position up to which
// every message is complete: stored by the sink, dropped by the route, or stored as a dead letter.
// After a failure the pipeline resends the failed message and all that the sink has stored behind
// it. The package imports message, but no source, no sink and no service.
package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/ring"
)

// ErrClosed is the error of Offer after the pipeline is closed.
var ErrClosed = errors.New("the pipeline is closed")

// ErrLoop is the error of a route's Prepare for a message that has been at its destination before.
var ErrLoop = errors.New("the message has been at its destination before")

// Pipeline moves the messages of one partition. One goroutine at a time calls Offer. Any goroutine may
// call Close and Abandon at any time.
//
// The source's goroutine offers and sends, and the sink's goroutines record outcomes. Own goroutines
// commit and resend (run), and store dead letters while there are any.
type Pipeline struct {
	set        *Set
	name       string
	commitEach int
	log        *zap.Logger

	ctx       context.Context // ends when the pipeline is closed
	cancel    context.CancelCauseFunc
	wakeRun   chan struct{} // run has something to resend or to commit
	wakeOffer chan struct{} // Offer may find that it can continue
	ended     chan struct{} // closed when run has returned: nothing is resent afterwards

	mu                   sync.Mutex
	window               ring.Ring[*entry] // in the order of Offer; complete messages leave at the head
	popped               int               // messages that have left the window since the pipeline was opened
	held                 amount            // what the window holds; see pool
	pending              int               // messages that the sink has and whose outcome is not known
	firstFailure         error             // the first failed send since the last resend; nil: none
	resending            bool              // resend runs
	storedSince          bool              // the sink has stored a message since the last resend began
	refused              []*entry          // to be stored as dead letters
	storingDeadLetters   bool              // storeDeadLetters runs
	watermark, committed int64             // the last complete position, and the last committed one (guarded by commitMu); -1: none
	sinceCommit          int               // messages that left the window since the last commitWatermark, for CommitEach
	drained              chan struct{}     // closed when the window is empty; nil unless Drain waits
	offered              uint64
	free                 *entry // entries to reuse, linked by next

	commitMu sync.Mutex // held while the source commits
	finished bool
	commit   func(int64) error

	prepare Prepare
	onClose func() // nil: none; called once, when nothing is sent any more
}

// entry is one message in the window.
type entry struct {
	m        *message.Message
	to       string
	position int64
	size     int64
	state    state
	sent     time.Time // set for those whose stages are timed
	err      error     // why the message was refused or is dropped
	done     func(error)
	next     *entry // in the list free
}

type state uint8

const (
	stateSent    state = iota // the sink has it, or gets it next
	stateStored               // the sink has stored it; it is resent when a message before it failed
	stateDone                 // filtered, dropped as a loop, or stored as a dead letter: never resent
	stateFailed               // to be resent
	stateRefused              // to be stored as a dead letter
)

// sampleEvery is how many messages there are for each one whose stages are timed.
const sampleEvery = 64

// CommitEach makes the pipeline commit after n complete messages, too, not only at the interval. It is
// for sources whose broker bounds how many messages are not acknowledged. It is called before Offer.
func (l *Pipeline) CommitEach(n int) { l.commitEach = n }

// Offer takes m, whose position in the source is position. Positions ascend and may have gaps.
// Offer blocks while the pipeline is full, while the route is paused and while a failure is not resent.
// It returns an error when ctx ends or the pipeline is closed; then the pipeline has not taken m.
//
// While Offer blocks the source should stop fetching for this partition, and for no other.
func (l *Pipeline) Offer(ctx context.Context, m *message.Message, position int64) error {
	to, keep, err := l.prepare(ctx, m)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	offered := entry{m: m, to: to, position: position, size: m.Size(), err: err}
	switch {
	case err != nil && !errors.Is(err, ErrLoop):
		offered.state = stateRefused
	case err != nil || !keep:
		offered.state = stateDone
	}
	for {
		e, err := l.tryAdmit(&offered)
		if err != nil {
			return err
		}
		if e != nil {
			if offered.state == stateSent {
				l.send(ctx, e)
			}
			return nil
		}
		if err := l.await(ctx, l.wakeOffer); err != nil {
			return err
		}
	}
}

// tryAdmit puts a copy of offered into the window and returns it. It returns nil if the route is
// paused, a failure is not resent, or there is no room. Only the state stateSent leaves the copy with
// the caller; in others it may hold another message already.
func (l *Pipeline) tryAdmit(offered *entry) (*entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if l.set.paused.Load() || l.firstFailure != nil || l.resending || !l.set.pool.take(l, offered.size) {
		return nil, nil //nolint:nilnil // it is no error to wait
	}
	e := l.newEntry()
	e.m, e.to, e.position, e.size, e.state, e.err = offered.m, offered.to, offered.position, offered.size, offered.state, offered.err
	l.window.Push(e)
	l.offered++
	switch e.state {
	case stateRefused:
		l.refuse(e, e.err)
	case stateDone:
		l.set.filtered.Add(1)
		if e.err != nil {
			l.set.route.Metrics.looped.Inc()
		} else {
			l.set.route.Metrics.filtered.Inc()
		}
		l.advance()
	default:
		l.pending++
		if l.offered%sampleEvery == 0 {
			l.observeArrival(e)
		}
	}
	return e, nil
}

// newEntry returns an entry, one of free if there is any. l.mu is held.
func (l *Pipeline) newEntry() *entry {
	e := l.free
	if e == nil {
		e = new(entry)
		e.done = func(err error) { l.recordOutcome(e, err) }
		return e
	}
	l.free = e.next
	return e
}

func (l *Pipeline) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return ErrClosed
	}
}

// observeArrival measures the stages before the message goes to the sink.
func (l *Pipeline) observeArrival(e *entry) {
	from, metrics := e.m.From, l.set.route.Metrics
	e.sent = time.Now()
	stored := from.Stored
	if stored.IsZero() {
		stored = e.m.Time
	}
	if !stored.IsZero() {
		metrics.pull.Observe(max(from.Received.Sub(stored).Seconds(), 0))
	}
	metrics.queue.Observe(e.sent.Sub(from.Received).Seconds())
}

// send gives an entry to the sink.
func (l *Pipeline) send(ctx context.Context, e *entry) {
	began := e.sent // when Send returns, e may hold another message
	l.set.route.Sink.Send(ctx, e.to, e.m, e.done)
	if !began.IsZero() {
		l.set.route.Metrics.send.Observe(time.Since(began).Seconds())
	}
}

// recordOutcome records what the sink did with the message of e.
func (l *Pipeline) recordOutcome(e *entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	_, final := Refused(err)
	switch {
	case err == nil:
		e.state, l.storedSince = stateStored, true
		l.set.stored.Add(1)
		metrics := l.set.route.Metrics
		metrics.stored.Inc()
		metrics.bytes.Add(float64(e.size))
		if !e.sent.IsZero() {
			metrics.write.Observe(time.Since(e.sent).Seconds())
		}
		l.advance()
	case final:
		l.refuse(e, err)
	default:
		e.state = stateFailed
		if l.firstFailure == nil {
			l.firstFailure = err
		}
	}
	if l.firstFailure != nil && l.pending == 0 {
		signal(l.wakeRun)
	}
}

// advance removes the complete messages at the window's head and raises the watermark to the last
// of them. A message that is stored behind a failed one stays in the window: it is resent after the
// failed one. l.mu is held.
func (l *Pipeline) advance() {
	var done amount
	for l.window.Len() > 0 {
		e := *l.window.Head()
		if e.state != stateStored && e.state != stateDone {
			break
		}
		l.window.Pop()
		l.popped++
		l.sinceCommit++
		l.watermark = e.position
		done = done.plus(amount{1, e.size})
		e.m, e.sent, e.err, e.next, l.free = nil, time.Time{}, nil, l.free, e
	}
	if done.messages == 0 {
		return
	}
	l.set.pool.release(l, done)
	signal(l.wakeOffer)
	if l.commitEach > 0 && l.sinceCommit >= l.commitEach {
		signal(l.wakeRun)
	}
	if l.window.Len() == 0 && l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run commits and resends until the pipeline is closed.
func (l *Pipeline) run() {
	defer close(l.ended)
	defer l.set.sinkFailures.remove(l, ErrClosed)
	defer l.set.deadLetterFailures.remove(l, ErrClosed)
	ticker := time.NewTicker(l.set.cfg.CommitEvery)
	defer ticker.Stop()
	wait := l.set.cfg.backoff()
	failing := false
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wakeRun:
		case <-ticker.C:
		}
		l.commitWatermark()
		recovered, err := l.progress()
		switch {
		case err != nil:
			failing = true
			// A canceled send is no failure of the sink: the source's context ended during Offer.
			if !errors.Is(err, context.Canceled) {
				l.set.sinkFailures.add(l, err)
			}
			if wait.Wait(l.ctx) {
				l.resend()
			}
		case failing && recovered:
			l.set.sinkFailures.remove(l, nil)
			wait.Reset()
			failing = false
		}
	}
}

// progress returns the first failure once every outcome is known. recovered reports whether there is
// none, and the sink has stored a message since the last resend began, or refused what had failed.
func (l *Pipeline) progress() (recovered bool, failure error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == 0 {
		failure = l.firstFailure
	}
	return l.firstFailure == nil && (l.storedSince || l.pending == 0), failure
}

// resend sends the failed messages again, and those that the sink has stored behind the first of
// them, in order. It ends early when a send fails.
func (l *Pipeline) resend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.firstFailure, l.storedSince, l.resending = nil, false, true
	defer func() { l.resending = false }()
	behindFailure := false
	for i := range l.window.Len() {
		e := *l.window.At(i)
		behindFailure = behindFailure || e.state == stateFailed
		if behindFailure && e.state == stateStored {
			e.state = stateFailed
		}
	}
	for i := 0; i < l.window.Len() && l.firstFailure == nil && l.ctx.Err() == nil; i++ {
		e := *l.window.At(i)
		if e.state != stateFailed {
			continue
		}
		e.state, e.sent = stateSent, time.Time{}
		l.pending++
		l.set.resent.Add(1)
		poppedBefore := l.popped
		l.mu.Unlock()
		l.send(l.ctx, e)
		l.mu.Lock()
		// Messages have left the window's head meanwhile, perhaps also that at i.
		i = max(i-(l.popped-poppedBefore), -1)
	}
	if l.firstFailure == nil {
		signal(l.wakeOffer)
	} else if l.pending == 0 {
		signal(l.wakeRun)
	}
}

// stop ends the route, and this pipeline at once.
func (l *Pipeline) stop(cause error) {
	l.set.route.Stop(cause)
	l.cancel(cause)
}

// commitWatermark commits the watermark if it is above the committed position. run and Close may
// call it at once.
func (l *Pipeline) commitWatermark() {
	l.mu.Lock()
	watermark := l.watermark
	l.sinceCommit = 0
	l.mu.Unlock()
	l.commitMu.Lock()
	defer l.commitMu.Unlock()
	if l.finished || watermark <= l.committed {
		return
	}
	if err := l.commit(watermark); err != nil {
		l.log.Warn("cannot commit, will keep trying", zap.Int64("position", watermark), zap.Error(err))
		return
	}
	l.committed = watermark
}

// Drain waits until every message in the window is complete. It returns an error when ctx ends or
// the pipeline is closed. The source should not call Offer meanwhile.
func (l *Pipeline) Drain(ctx context.Context) error {
	l.mu.Lock()
	if l.window.Len() == 0 {
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

// Close waits until every message in the window is complete or ctx ends, closes the pipeline, and
// commits the watermark. Afterwards the pipeline commits and sends nothing: another may have the
// partition. Close returns an error when messages were left.
func (l *Pipeline) Close(ctx context.Context) error {
	err := l.Drain(ctx)
	l.cancel(ErrClosed)
	<-l.ended
	l.commitWatermark()
	l.finish()
	return err
}

// Abandon closes the pipeline without waiting for outcomes and without committing, such as when the
// connection to which its positions belong is lost. The pipeline sends nothing afterwards.
func (l *Pipeline) Abandon() {
	l.cancel(ErrClosed)
	<-l.ended
	l.finish()
}

// finish prevents further commits, calls onClose, empties the window and removes the pipeline from its
// set. The sink may still store messages that it has.
func (l *Pipeline) finish() {
	l.commitMu.Lock()
	defer l.commitMu.Unlock()
	if l.finished {
		return
	}
	l.finished = true
	if l.onClose != nil {
		l.onClose()
	}
	l.mu.Lock()
	l.window.Clear()
	l.set.pool.release(l, l.held)
	l.mu.Unlock()
	l.set.remove(l)
}

// oldest returns the time of the window's first message: when the source's broker stored it, or when
// this process received it. It is zero if the window is empty.
func (l *Pipeline) oldest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.window.Len() == 0 {
		return time.Time{}
	}
	from := (*l.window.Head()).m.From
	if from.Stored.IsZero() {
		return from.Received
	}
	return from.Stored
}
