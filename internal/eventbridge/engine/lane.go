package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// store is the open way into a send topic.
type store interface {
	// put stores copies, and returns those that are stored, and those that are not known to be, with the reason. After an
	// error the store is of no use any more.
	put(ctx context.Context, entries []entry) (done, left []entry, err error)
	close(ctx context.Context)
}

// deadLetters take what a send topic does not.
type deadLetters interface {
	// open opens the dead-letter topic, and returns since when it is open.
	open(ctx context.Context) (since time.Time, err error)
	// put stores all entries, or returns why they are not all stored.
	put(ctx context.Context, entries []entry, reason string) error
	close()
}

// entry is a copy on its way.
type entry struct {
	position int64
	record   *messaging.Record
	size     int
	of       *message
}

// lane stores the copies for one subscriber, in the order in which they are added; for an ordered subscriber those of
// one partition. While one group of copies is being stored, the next one gathers. What works for the lane is there
// while there are copies, and for a while after.
type lane struct {
	cfg        Config
	subscriber *registry.Subscriber // any revision of it: UID, name and order never change
	ordered    bool
	open       func(context.Context) (store, error)
	turns      turns
	bury       deadLetters
	log        *zap.Logger
	metrics    *busMetrics
	ctx        context.Context // the lane's life
	end        context.CancelFunc
	working    sync.WaitGroup

	mu      sync.Mutex
	queue   []entry
	count   int // not finished: those in the queue, and those under way
	bytes   int64
	last    int64 // position that was added last
	stored  int64 // position up to which all is finished
	late    []entry
	room    chan struct{} // closed when there is room again; nil: nobody waits
	wake    chan struct{} // one element when the queue has something
	running bool
	gone    bool // the subscriber was deleted; ctx has ended
	trouble error
	since   time.Time
}

// groupRecords bounds the copies that are stored together.
const groupRecords = 500

// add has e stored. It waits while the lane is full, until ctx ends: then it returns false, and nothing was added.
func (l *lane) add(ctx context.Context, e entry) bool {
	l.mu.Lock()
	for !l.gone && l.count > 0 && (l.count >= l.cfg.QueueRecords || l.bytes+int64(e.size) > l.cfg.QueueBytes) {
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room := l.room
		l.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return false
		case <-l.ctx.Done(): // it ends, or its subscriber was deleted
		}
		l.mu.Lock()
		if l.ctx.Err() != nil && !l.gone {
			l.mu.Unlock()
			return false
		}
	}
	defer l.mu.Unlock()
	if l.gone {
		e.of.done(nil)
		return true
	}
	if l.ctx.Err() != nil {
		return false
	}
	if l.ordered && e.position <= l.last {
		// The broker has delivered it again. It was added before, or passed over, as the rules were then.
		if e.position <= l.stored {
			e.of.done(nil)
		} else {
			l.late = append(l.late, e)
		}
		return true
	}
	l.last = e.position
	l.queue = append(l.queue, e)
	l.count++
	l.bytes += int64(e.size)
	if !l.running {
		l.running = true
		l.working.Go(l.run)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// forget says that the subscriber was deleted: what waits is not stored, and nobody waits for what is being stored.
func (l *lane) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	l.end()
}

// take waits for copies and takes a group of them out of the queue: nil when the lane has been idle, or ends.
func (l *lane) take() []entry {
	var idle *time.Timer
	for {
		l.mu.Lock()
		if l.ctx.Err() != nil {
			l.mu.Unlock()
			return nil
		}
		if n := l.group(); n > 0 {
			group := append([]entry(nil), l.queue[:n]...)
			if clear(l.queue[:n]); n == len(l.queue) {
				l.queue = l.queue[:0]
			} else {
				l.queue = l.queue[n:]
			}
			l.mu.Unlock()
			return group
		}
		l.mu.Unlock()
		if idle == nil {
			idle = time.NewTimer(l.cfg.IdleAfter)
			defer idle.Stop()
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
		case <-idle.C:
			return nil
		}
	}
}

// endError is what becomes of copies of a lane that ends: those of a deleted subscriber are not missed.
func (l *lane) endError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil
	}
	return errGivenUp
}

// leave ends the work for a lane that has been idle, or ends: what is in the queue of one that ends is given up. It returns
// false when there is something to do again. All that was open is closed.
func (l *lane) leave() bool {
	l.mu.Lock()
	if l.ctx.Err() == nil && len(l.queue) > 0 {
		l.mu.Unlock()
		return false
	}
	rest, late := l.queue, l.late
	l.queue, l.late, l.running = nil, nil, false
	l.mu.Unlock()
	err := l.endError()
	for _, e := range late {
		e.of.done(err)
	}
	l.finish(rest, err)
	return true
}

// group returns how many copies at the beginning of the queue are stored together. l.mu is held.
func (l *lane) group() (n int) {
	bytes := 0
	for n < len(l.queue) && n < groupRecords {
		if bytes += messaging.EntryBytes(l.queue[n].record); n > 0 && bytes > messaging.MaxEntryBytes {
			break
		}
		n++
	}
	return n
}

// finish notes that copies are stored, or given up. Copies are finished in their order.
func (l *lane) finish(entries []entry, err error) {
	if len(entries) == 0 {
		return
	}
	l.mu.Lock()
	var done []entry
	for _, e := range entries {
		l.count--
		l.bytes -= int64(e.size)
	}
	if err == nil || !errors.Is(err, errGivenUp) {
		l.stored = max(l.stored, entries[len(entries)-1].position)
		left := l.late[:0]
		for _, e := range l.late {
			if e.position <= l.stored {
				done = append(done, e)
			} else {
				left = append(left, e)
			}
		}
		l.late = left
	}
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
	l.mu.Unlock()
	for _, e := range entries {
		e.of.done(err)
	}
	for _, e := range done {
		e.of.done(nil)
	}
}

// The bounds of one try: to open a send topic, or a dead-letter topic.
const (
	openTimeout  = 15 * time.Second
	closeTimeout = 5 * time.Second
	// probeEvery is how often a topic is tried whose copies go to the dead-letter topic meanwhile.
	probeEvery = 30 * time.Second
)

// run stores what is added until the lane is idle or ends.
func (l *lane) run() {
	w := laneWork{lane: l}
	for {
		if group := l.take(); group != nil {
			w.store(group)
			continue
		}
		w.closeAll()
		if l.leave() {
			return
		}
	}
}

// laneWork is what one goroutine does for a lane.
type laneWork struct {
	*lane
	way   store
	pause pause
	tried time.Time // when the send topic was tried last, and when that failed
}

// store sees to it that a group is stored, here or among the dead letters, or given up.
func (w *laneWork) store(group []entry) {
	alone := false // each copy by itself: together they are too large
	for len(group) > 0 {
		if w.ctx.Err() != nil {
			w.finish(group, w.endError())
			return
		}
		if time.Since(w.tried) < probeEvery && w.buried(group) {
			w.finish(group, nil)
			return
		}
		one := group
		if alone {
			one = group[:1]
		}
		done, left, err := w.send(one)
		w.metrics.stored.Add(float64(len(done)))
		w.finish(done, nil)
		group = append(left, group[len(one):]...)
		switch {
		case err == nil:
			w.well()
			continue
		case w.ctx.Err() != nil:
			continue
		case errors.Is(err, messaging.ErrTooLarge) && len(one) > 1:
			alone = true
			continue
		case errors.Is(err, messaging.ErrTooLarge):
			// The brokers took the event. They do not take the copy, which has some properties more.
			w.metrics.refused.Inc()
			w.finish(group[:1], messaging.Reject(err))
			group = group[1:]
			continue
		}
		w.tried = time.Now() // it may have taken longer than it is until the next try
		w.troubled(err)
		if w.buried(group) {
			w.finish(group, nil)
			return
		}
		w.pause.wait(w.ctx)
	}
}

// buried makes a group dead letters, if the send topic has taken nothing for long, and the dead-letter topic has been
// open for as long: while the brokers are away, and when they have just come back, that says nothing about one topic.
func (w *laneWork) buried(group []entry) bool {
	if !w.stalled() {
		return false
	}
	since, err := w.bury.open(w.ctx)
	if err != nil || !w.terminated() && time.Since(since) < w.cfg.StallAfter {
		return false
	}
	return w.bury.put(w.ctx, group, w.reason()) == nil
}

// send stores copies of a group in the send topic, from the first on, and returns those that are left.
func (w *laneWork) send(group []entry) (done, left []entry, err error) {
	w.tried = time.Now()
	w.mu.Lock()
	if w.since.IsZero() {
		w.since = w.tried
	}
	w.mu.Unlock()
	if w.way == nil {
		if err := w.openWay(); err != nil {
			return nil, group, err
		}
	}
	putting, cancel := context.WithTimeout(w.ctx, w.cfg.StallAfter)
	defer cancel()
	done, left, err = w.way.put(putting, group)
	if err != nil {
		w.close()
	}
	return done, left, err
}

// openWay opens the send topic, when it is its turn: with a thousand lanes that begin at once the brokers would answer
// none in time. Topics that are ill have turns of their own, and hold up no others.
func (w *laneWork) openWay() (err error) {
	turns := w.turns.first
	if w.Trouble() != nil {
		turns = w.turns.again
	}
	opening, cancel := context.WithTimeout(w.ctx, openTimeout)
	defer cancel()
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-opening.Done():
		return fmt.Errorf("too many send topics are being opened: %w", opening.Err())
	}
	way, err := w.open(opening)
	if err != nil {
		return err
	}
	w.way = way
	w.metrics.lanes.Inc()
	return nil
}

// turns bound how many send topics are being opened at once.
type turns struct{ first, again chan struct{} }

func newTurns() turns { return turns{make(chan struct{}, 32), make(chan struct{}, 8)} }

// closeAll closes what is open. The lane is idle, or ends.
func (w *laneWork) closeAll() {
	w.close()
	w.bury.close()
	w.mu.Lock()
	was := w.trouble
	w.trouble, w.since = nil, time.Time{}
	w.mu.Unlock()
	if was != nil {
		w.metrics.troubled.Dec()
	}
}

// close closes the way into the send topic.
func (w *laneWork) close() {
	if w.way == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), closeTimeout)
	defer cancel()
	w.way.close(closing)
	w.way = nil
	w.metrics.lanes.Dec()
}

// stalled reports whether the send topic has taken nothing for long.
func (l *lane) stalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.trouble, messaging.ErrTopicTerminated) || l.trouble != nil && time.Since(l.since) >= l.cfg.StallAfter
}

// terminated reports whether the send topic will never take anything again.
func (l *lane) terminated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.trouble, messaging.ErrTopicTerminated)
}

// reason is why copies become dead letters.
func (l *lane) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "the send topic takes nothing: " + l.trouble.Error()
}

// troubled notes why nothing is stored, and says so once.
func (w *laneWork) troubled(err error) {
	w.mu.Lock()
	first := w.trouble == nil
	w.trouble = err
	w.mu.Unlock()
	if first {
		w.metrics.troubled.Inc()
		w.log.Warn("a send topic takes nothing, trying on", zap.Error(err))
	}
}

// well notes that the send topic takes copies.
func (w *laneWork) well() {
	w.pause = 0
	w.mu.Lock()
	was, since := w.trouble, w.since
	w.trouble, w.since = nil, time.Time{}
	w.mu.Unlock()
	if was != nil {
		w.bury.close()
		w.metrics.troubled.Dec()
		w.log.Info("a send topic takes copies again", zap.Duration("after", time.Since(since)))
	}
}

// Trouble is why nothing is stored, nil when it is.
func (l *lane) Trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}
