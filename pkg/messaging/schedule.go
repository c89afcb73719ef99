package messaging

import (
	"container/heap"
	"sync"
	"time"
)

// scheduler stands between the receiving goroutines and the workers. It holds
// every delivery from receipt to its end, keeps their number and bytes within
// bounds, and hands them out in the order asked for.
//
// A delivery is in exactly one place: waiting (in loose, or in its lane's queue),
// running (a worker's, or a copy of it is under way), held until a time, or again
// (its time has come and the next worker takes it first). Running, held and again
// deliveries of a lane keep the lane for themselves.
//
// Lanes exist only for keys that have something unfinished. A held delivery
// occupies its lane, if any, and its share of the bounds, but no worker.
type scheduler struct {
	order    Order
	async    bool // a delivery leaves its lane when handed over, and ends later
	workers  int
	maxCount int
	maxBytes int64

	mu    sync.Mutex
	work  sync.Cond // workers wait for something to do
	room  sync.Cond // receivers wait for room, closers for running deliveries to end
	loose queue[*task]
	ready queue[*keyLane] // lanes with waiting deliveries and none running
	again queue[*task]
	held  heldHeap
	timer *time.Timer
	lanes map[string]*keyLane
	spare []*keyLane

	unfinished taskList
	count      int
	bytes      int64
	waiting    int // in loose and in lanes
	copies     int // deliveries whose copy is under way
	idle       int // workers in work.Wait
	blocked    int // receivers waiting for room
	awaiting   int // callers of awaitEnd
	pace       time.Duration
	state      schedulerState
}

type schedulerState int

const (
	open     schedulerState = iota
	stopping                // nothing starts; copies under way may end
	stopped                 // workers return at once
)

// keyLane is the deliveries of one key, oldest first.
type keyLane struct {
	key     string
	queue   queue[*task]
	running int // running, held or again
}

const (
	// chunkSize bounds how many deliveries a worker takes at once.
	chunkSize = 64
	// quick is the time per message below which workers take several at once.
	quick = 50 * time.Microsecond
)

// worker is a handler goroutine's part of the scheduler.
type worker struct {
	chunk   chunk
	busy    busySlot
	handled int // verdicts nil that the metrics do not know of yet

	mu    sync.Mutex // of done; taken while holding the scheduler's
	done  []*task
	spare []*task
	// Handed over, and not running any more, in RunAsync.
	returned []*task
}

// finish notes that d has ended. The scheduler hears with the worker's next call,
// or earlier when the worker is slow.
func (w *worker) finish(d *task) {
	w.mu.Lock()
	w.done = append(w.done, d)
	w.mu.Unlock()
}

func newScheduler(order Order, workers, maxCount int, maxBytes int64) *scheduler {
	s := &scheduler{
		order: order, workers: workers, maxCount: max(maxCount, 1), maxBytes: max(maxBytes, 1),
		lanes: make(map[string]*keyLane),
		pace:  time.Millisecond, // take single ones until the handler's pace is known
	}
	s.work.L, s.room.L = &s.mu, &s.mu
	return s
}

// push adds received deliveries, which are of one session and in the order of
// receipt. It returns once there is room for more, or the session or the
// scheduler has ended.
func (s *scheduler) push(ds []*task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != open || len(ds) == 0 {
		return // dropped: not acknowledged, so the broker delivers them again
	}
	sess := ds[0].session
	for _, d := range ds {
		s.unfinished.add(d)
		s.count++
		s.bytes += d.size
		sess.unfinished++
		if !d.due.IsZero() { // delivered early, and without a lane: see restore
			heap.Push(&s.held, d)
			s.arm()
			continue
		}
		s.waiting++
		if l := s.laneOf(d); l != nil {
			l.queue.push(d)
			if l.running == 0 && l.queue.len() == 1 {
				s.ready.push(l)
			}
		} else {
			s.loose.push(d)
		}
	}
	s.wakeWorker()
	s.blocked++
	for s.full() && s.state == open && !sess.pressing() {
		s.room.Wait()
	}
	s.blocked--
}

// full reports whether the bounds are reached.
func (s *scheduler) full() bool { return s.count >= s.maxCount || s.bytes >= s.maxBytes }

// laneOf returns the lane of d, making it when needed, or nil when d is ordered
// against nothing.
func (s *scheduler) laneOf(d *task) *keyLane {
	key := d.key
	switch {
	case s.order == OrderTotal:
		key = ""
	case s.order == OrderPartition:
		key = d.Topic
	case s.order == OrderNone || key == "":
		return nil
	}
	l := s.lanes[key]
	if l == nil {
		if n := len(s.spare); n > 0 {
			l, s.spare = s.spare[n-1], s.spare[:n-1]
		} else {
			l = new(keyLane)
		}
		l.key = key
		s.lanes[key] = l
	}
	d.lane = l
	return l
}

func (s *scheduler) wakeWorker() {
	if s.idle > 0 {
		s.work.Signal()
	}
}

// next ends the deliveries in w.done, then fills w.chunk, waiting for something to
// do. It returns false when the worker must return. elapsed is how long the last
// chunk took.
func (s *scheduler) next(w *worker, handled int, elapsed time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if handled > 0 {
		s.pace += (elapsed/time.Duration(handled) - s.pace) / 8
	}
	s.endDone(w)
	for !s.fill(w) {
		// Verdicts that come late can make copies: see RunAsync.
		if s.state == stopped || s.state == stopping && s.copies == 0 && !(s.async && s.count > 0) {
			return false
		}
		s.maybeRoom()
		s.idle++
		s.work.Wait()
		s.idle--
	}
	s.maybeRoom()
	if s.again.len() > 0 || s.loose.len() > 0 || s.ready.len() > 0 {
		s.wakeWorker()
	}
	return true
}

// endDone ends what the worker has finished.
func (s *scheduler) endDone(w *worker) {
	w.mu.Lock()
	done := w.done
	w.done = w.spare
	for i, d := range w.returned {
		s.release(d)
		w.returned[i] = nil
	}
	w.returned = w.returned[:0]
	w.mu.Unlock()
	for i, d := range done {
		s.end(d)
		done[i] = nil
	}
	w.spare = done[:0]
}

// fill takes what the worker may handle one after the other, and reports whether
// there was any.
func (s *scheduler) fill(w *worker) bool {
	if s.again.len() > 0 {
		w.chunk.set(s.again.pop())
		return true
	}
	if s.state != open {
		return false
	}
	most := 1
	if s.workers == 1 || s.pace < quick {
		most = min(max(s.waiting/2, 1), chunkSize)
	}
	w.chunk.reset()
	for w.chunk.n < most && s.loose.len() > 0 {
		w.chunk.add(s.loose.pop())
	}
	for w.chunk.n < most && s.ready.len() > 0 {
		l := s.ready.pop()
		for w.chunk.n < most && l.queue.len() > 0 {
			w.chunk.add(l.queue.pop())
			l.running++
		}
	}
	s.waiting -= w.chunk.n
	return w.chunk.n > 0
}

// end takes a delivery out: it was acknowledged, or is given up unacknowledged.
func (s *scheduler) end(d *task) {
	s.unfinished.remove(d)
	s.count--
	s.bytes -= d.size
	d.session.unfinished--
	if d.session.unfinished == 0 && s.awaiting > 0 {
		s.room.Broadcast()
	}
	if s.count == 0 && s.state == stopping {
		s.work.Broadcast()
	}
	s.release(d)
}

// release gives d's lane to the next delivery of the key.
func (s *scheduler) release(d *task) {
	l := d.lane
	if l == nil {
		return
	}
	d.lane = nil
	l.running--
	s.settleLane(l)
}

// settleLane makes a lane ready, or drops it, once nothing of it is running.
func (s *scheduler) settleLane(l *keyLane) {
	switch {
	case l.running > 0:
	case l.queue.len() > 0:
		s.ready.push(l)
	default:
		delete(s.lanes, l.key)
		if len(s.spare) < chunkSize {
			s.spare = append(s.spare, l)
		}
	}
}

// maybeRoom wakes receivers when there is room worth waking for: an eighth of the
// bounds, or any at all when the workers have nothing else to do.
func (s *scheduler) maybeRoom() {
	if s.blocked == 0 || s.full() {
		return
	}
	if s.waiting == 0 || s.count <= s.maxCount-s.maxCount/8 && s.bytes <= s.maxBytes-s.maxBytes/8 {
		s.room.Broadcast()
	}
}

// hold keeps a running delivery until due.
func (s *scheduler) hold(d *task, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != open || d.session.over() {
		s.end(d) // unacknowledged: the broker delivers it again
		return
	}
	d.due = due
	heap.Push(&s.held, d)
	s.arm()
}

// arm sets the timer for the first held delivery.
func (s *scheduler) arm() {
	if len(s.held) == 0 {
		return
	}
	wait := max(time.Until(s.held[0].due), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.wakeHeld)
		return
	}
	s.timer.Reset(wait)
}

// wakeHeld moves held deliveries whose time has come to again.
func (s *scheduler) wakeHeld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.held) > 0 && !s.held[0].due.After(now) {
		first := s.held[0]
		heap.Pop(&s.held)
		if s.async && first.copying == nil {
			s.requeue(first)
		} else {
			s.again.push(first)
		}
		s.wakeWorker()
	}
	s.arm()
}

// startCopy notes that a copy of d is under way; resume must follow.
func (s *scheduler) startCopy() {
	s.mu.Lock()
	s.copies++
	s.mu.Unlock()
}

// resume hands a delivery whose copy has its outcome to the next worker.
func (s *scheduler) resume(d *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies--
	if s.state == stopped {
		s.end(d)
		return
	}
	s.again.push(d)
	s.wakeWorker()
	if s.state == stopping {
		s.work.Broadcast() // workers wait for the last copy
	}
}

// giveBack returns deliveries that a worker took and did not start.
func (s *scheduler) giveBack(ds []*task) {
	if len(ds) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returnWaiting(ds)
	s.wakeWorker()
}

func (s *scheduler) returnWaiting(ds []*task) {
	for i := len(ds) - 1; i >= 0; i-- {
		d := ds[i]
		switch {
		case s.state != open || d.session.over():
			s.end(d)
		case d.lane == nil:
			s.loose.pushFront(d)
			s.waiting++
		default:
			l := d.lane
			l.queue.pushFront(d)
			s.waiting++
			l.running--
			if l.running == 0 {
				s.ready.push(l)
			}
		}
	}
}

// steal takes from workers that have been at one message since before what they
// took along and have not started, and what they have finished: one slow message
// must hold up neither those behind it nor the keys of those before it.
func (s *scheduler) steal(ws []*worker, before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range ws {
		if since := w.busy.since(); !since.IsZero() && since.Before(before) {
			s.endDone(w)
			if rest := w.chunk.rest(); len(rest) > 0 {
				s.returnWaiting(rest)
				s.work.Broadcast()
			}
			s.maybeRoom()
			s.wakeWorker()
		}
	}
}

// drop gives up what has not started and is not running of the deliveries that
// match. The caller has ended the session, or the broker has.
func (s *scheduler) drop(match func(*task) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(match)
	s.room.Broadcast()
}

func (s *scheduler) dropLocked(match func(*task) bool) {
	dropWaiting := func(q *queue[*task]) {
		q.filter(func(d *task) bool {
			if !match(d) {
				return true
			}
			s.waiting--
			d.lane = nil // a waiting delivery does not occupy its lane
			s.end(d)
			return false
		})
	}
	dropWaiting(&s.loose)
	for key, l := range s.lanes {
		dropWaiting(&l.queue)
		if l.running == 0 && l.queue.len() == 0 {
			delete(s.lanes, key)
		}
	}
	s.ready.filter(func(l *keyLane) bool { return l.queue.len() > 0 })
	s.again.filter(func(d *task) bool {
		if d.copying != nil && d.copying.stored || !match(d) {
			return true
		}
		s.end(d)
		return false
	})
	var gone []*task
	for _, d := range s.held {
		if match(d) {
			gone = append(gone, d)
		}
	}
	for _, d := range gone {
		heap.Remove(&s.held, d.heldAt)
		s.end(d)
	}
}

// stop drops everything that has not started. Workers return once they have
// finished what they run and the copies under way have their outcome.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == open {
		s.state = stopping
	}
	s.dropLocked(func(*task) bool { return true })
	s.work.Broadcast()
	s.room.Broadcast()
}

// abandon makes workers return without waiting for copies.
func (s *scheduler) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = stopped
	if s.timer != nil {
		s.timer.Stop()
	}
	s.work.Broadcast()
	s.room.Broadcast()
}

// wake makes receivers look at their session's state.
func (s *scheduler) wake() {
	s.mu.Lock()
	s.room.Broadcast()
	s.mu.Unlock()
}

// awaitEnd waits until nothing of sess is unfinished, or giveUp reports true; the
// caller then calls wake.
func (s *scheduler) awaitEnd(sess *session, giveUp func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting++
	for sess.unfinished > 0 && !giveUp() {
		s.room.Wait()
	}
	s.awaiting--
	return sess.unfinished == 0
}

// load is the number and bytes of unfinished deliveries, and of those held.
func (s *scheduler) load() (count int, bytes int64, held int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.bytes, len(s.held)
}

// places lists where the unfinished deliveries of sess stand in their topics.
func (s *scheduler) places(sess *session) map[place]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[place]struct{}, sess.unfinished)
	for d := s.unfinished.head; d != nil; d = d.next {
		if d.session == sess {
			m[placeOf(d.raw)] = struct{}{}
		}
	}
	return m
}

// ended reports whether abandon was called.
func (s *scheduler) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == stopped
}
