// Package schedule connects the goroutines that receive messages with the workers that handle them.
// A [Scheduler] holds every message from its receipt to its end, bounds their number and bytes, and
// gives them to workers in order per key. The package imports list only.
package schedule

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
)

// Item is the scheduler's part of a message. The caller embeds it, sets the exported fields
// before Push, and leaves the rest to the scheduler.
type Item struct {
	// QueueKey names the queue of an ordered item: one of them is handled at a time, oldest first.
	QueueKey string
	// Ordered is false for an item that waits for no other.
	Ordered bool
	// Size is the item's weight in bytes.
	Size int64
	// Due is the time before which the item is not handed out; an ordered one keeps those behind
	// it waiting until then. The zero time is at once.
	Due time.Time
	// Group is the session that the item was received in.
	Group *Group
	// Owner is the message that embeds the item.
	Owner any

	queue   *keyQueue
	links   list.Links[Item] // of the list of unfinished items
	heldAt  int              // index in the heap of held items, -1 outside
	requeue bool             // when its time comes, it goes back to the front of its queue
}

// Links makes Item an element of a list.
func (it *Item) Links() *list.Links[Item] { return &it.links }

// Group is the items of one session.
type Group struct {
	over       atomic.Bool
	overLimit  atomic.Bool
	unfinished int // guarded by the scheduler's lock
}

// Over reports whether the session has ended: its items that have not started are to be dropped.
func (g *Group) Over() bool { return g.over.Load() }

// End makes Over true. Wake wakes the goroutines that wait.
func (g *Group) End() { g.over.Store(true) }

// OverLimit reports whether SetOverLimit was called.
func (g *Group) OverLimit() bool { return g.overLimit.Load() }

// SetOverLimit makes Push of the group return at once, and reports whether it was the first to.
// Wake wakes the goroutines that wait.
func (g *Group) SetOverLimit() bool { return g.overLimit.CompareAndSwap(false, true) }

// ClearOverLimit ends what SetOverLimit began.
func (g *Group) ClearOverLimit() { g.overLimit.Store(false) }

// Config is how a scheduler works.
type Config struct {
	// Workers is the number of goroutines that call Next.
	Workers int
	// MaxCount and MaxBytes bound the unfinished items. Push blocks when they are reached.
	MaxCount int
	MaxBytes int64
	// HeldCount and HeldBytes bound the items that are held until a time, and those that wait
	// behind them: so many do not count against MaxCount and MaxBytes.
	HeldCount int
	HeldBytes int64
	// Async says that an item leaves its queue when its handler returns, and ends later.
	Async bool
	// Ended is called with finished items that have ended: the scheduler knows them no more. Next
	// calls it before it returns or waits, without a lock; the items are the callee's until it
	// returns. May be nil.
	Ended func(items []*Item)
}

// Scheduler hands out items. All methods may be called from any goroutine.
//
// An item is in exactly one place: waiting (in unordered, or in its key's queue), running (a worker
// has it, or a copy of it is being stored), held until a time, or again (its time has come, and
// the next worker takes it first). Running, held and again items keep their queue to themselves.
//
// A held item occupies its queue, if any, but no worker. A queue whose last item has ended stays
// for a time: the next of its key comes soon, as a rule.
type Scheduler struct {
	cfg Config

	mu        sync.Mutex
	work      sync.Cond // workers wait for something to do
	freed     sync.Cond // receivers wait to push more, closers for running items to end
	unordered queue[*Item]
	ready     queue[*keyQueue] // queues with waiting items and none running
	resumed   queue[*Item]
	held      heldHeap
	timer     *time.Timer
	keys      map[string]*keyQueue
	empty     int // queues of keys that have nothing unfinished

	unfinished list.List[Item, *Item] // oldest first; with Async
	count      int
	bytes      int64
	heldCount  int // held, or waiting behind a held item of the same queue
	heldBytes  int64
	waiting    int // in unordered and in queues
	copies     int // items whose copy is being stored
	idle       int // workers in work.Wait
	blocked    int // receivers in freed.Wait
	awaiting   int // callers of AwaitEnd
	pace       time.Duration
	state      state
}

type state int

const (
	open     state = iota
	stopping       // nothing starts; copies that are being stored may end
	stopped        // workers return at once
)

// keyQueue is the items of one key, oldest first.
type keyQueue struct {
	items   queue[*Item]
	bytes   int64 // of items
	running int   // running, held or again
	held    bool  // its first item is held
	empty   bool  // it has nothing unfinished
}

const (
	// ChunkSize bounds how many items a worker takes at once.
	ChunkSize = 64
	// keptEmpty is how many queues of keys without anything unfinished are kept at least.
	keptEmpty = 4096
	// Quick is the time per item below which workers take several at once.
	Quick = 50 * time.Microsecond
)

// New returns a scheduler.
func New(cfg Config) *Scheduler {
	cfg.MaxCount, cfg.MaxBytes = max(cfg.MaxCount, 1), max(cfg.MaxBytes, 1)
	s := &Scheduler{
		cfg: cfg, keys: make(map[string]*keyQueue),
		pace: time.Millisecond, // take single items until the handler's pace is known
	}
	s.work.L, s.freed.L = &s.mu, &s.mu
	return s
}

// Push adds received items, which are of one group and in the order of receipt. It returns once
// the bounds allow more, or the group is over its limit or has ended, or the scheduler has stopped.
func (s *Scheduler) Push(items []*Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != open || len(items) == 0 {
		return // dropped: not acknowledged, so the broker delivers them again
	}
	group := items[0].Group
	for _, it := range items {
		if s.cfg.Async {
			s.unfinished.Push(it)
		}
		it.heldAt = -1
		s.count++
		s.bytes += it.Size
		group.unfinished++
		if !it.Ordered && !it.Due.IsZero() {
			s.holdUntilDue(it)
			continue
		}
		s.enqueue(it)
	}
	s.wakeWorker()
	s.blocked++
	for s.full() && s.state == open && !group.Over() && !group.OverLimit() {
		s.freed.Wait()
	}
	s.blocked--
}

// enqueue puts an item behind those that wait.
func (s *Scheduler) enqueue(it *Item) { s.enqueueBy(it, (*queue[*Item]).push) }

// enqueueFirst puts an item in front of those that wait.
func (s *Scheduler) enqueueFirst(it *Item) { s.enqueueBy(it, (*queue[*Item]).pushFront) }

func (s *Scheduler) enqueueBy(it *Item, push func(*queue[*Item], *Item)) {
	s.waiting++
	if !it.Ordered {
		push(&s.unordered, it)
		return
	}
	q := s.queueOf(it)
	push(&q.items, it)
	s.waitsIn(q, it, 1)
	if q.running == 0 && q.items.len() == 1 {
		s.ready.push(q)
	}
}

// waitsIn counts an item that joins (n is 1) or leaves (-1) those waiting in q.
func (s *Scheduler) waitsIn(q *keyQueue, it *Item, n int64) {
	q.bytes += n * it.Size
	if q.held {
		s.heldCount += int(n)
		s.heldBytes += n * it.Size
	}
}

// full reports whether the bounds are reached.
func (s *Scheduler) full() bool {
	return s.count-min(s.heldCount, s.cfg.HeldCount) >= s.cfg.MaxCount ||
		s.bytes-min(s.heldBytes, s.cfg.HeldBytes) >= s.cfg.MaxBytes
}

// queueOf returns the queue of an ordered item, which it makes when there is none.
func (s *Scheduler) queueOf(it *Item) *keyQueue {
	q := s.keys[it.QueueKey]
	switch {
	case q == nil:
		q = new(keyQueue)
		s.keys[it.QueueKey] = q
	case q.empty:
		q.empty = false
		s.empty--
	}
	it.queue = q
	return q
}

// keepEmpty keeps a queue that has nothing unfinished, unless there are many: then all such go.
func (s *Scheduler) keepEmpty(q *keyQueue) {
	q.empty = true
	q.items.shrink()
	if s.empty++; s.empty <= max(keptEmpty, len(s.keys)-s.empty) {
		return
	}
	for key, q := range s.keys {
		if q.empty {
			delete(s.keys, key)
		}
	}
	s.empty = 0
}

func (s *Scheduler) wakeWorker() {
	if s.idle > 0 {
		s.work.Signal()
	}
}

// Next ends the items that w has finished, then fills w with items to handle one after the
// other, and waits for something to do. It returns false when the worker must return. The last
// items took elapsed, handled of them.
func (s *Scheduler) Next(w *Worker, handled int, elapsed time.Duration) bool {
	if s.refill(w, handled, elapsed) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.fill(w) {
		// Completions that come late can make copies.
		if s.state == stopped || s.state == stopping && s.copies == 0 && !(s.cfg.Async && s.count > 0) {
			return false
		}
		s.wakeReceivers()
		s.idle++
		s.work.Wait()
		s.idle--
	}
	s.wakeOthers()
	return true
}

// refill is Next without waiting. It reports whether there was something to do.
func (s *Scheduler) refill(w *Worker, handled int, elapsed time.Duration) bool {
	s.mu.Lock()
	if handled > 0 {
		s.pace += (elapsed/time.Duration(handled) - s.pace) / 8
	}
	ended := s.endFinished(w, w.spare)
	filled := s.fill(w)
	if filled {
		s.wakeOthers()
	}
	s.mu.Unlock()
	if s.cfg.Ended != nil && len(ended) > 0 {
		s.cfg.Ended(ended)
	}
	clear(ended)
	w.spare = ended[:0]
	return filled
}

// wakeOthers wakes workers if there are items behind those that a worker has taken.
func (s *Scheduler) wakeOthers() {
	s.wakeReceivers()
	if s.resumed.len() > 0 || s.unordered.len() > 0 || s.ready.len() > 0 {
		s.wakeWorker()
	}
}

// endFinished ends the items that the worker has finished, and returns them. The worker continues
// with the empty list.
func (s *Scheduler) endFinished(w *Worker, empty []*Item) (done []*Item) {
	w.mu.Lock()
	done, w.done = w.done, empty
	for i, it := range w.returned {
		s.leaveQueue(it)
		w.returned[i] = nil
	}
	w.returned = w.returned[:0]
	w.mu.Unlock()
	for _, it := range done {
		s.end(it)
	}
	return done
}

// fill takes items for the worker to handle one after the other, and reports whether there were
// any.
func (s *Scheduler) fill(w *Worker) bool {
	w.chunk.reset()
	if s.resumed.len() > 0 {
		w.chunk.add(s.resumed.pop())
		return true
	}
	if s.state != open {
		return false
	}
	most := 1
	if s.cfg.Workers == 1 || s.pace < Quick {
		most = min(max(s.waiting/2, 1), ChunkSize)
	}
	for w.chunk.n < most && s.unordered.len() > 0 {
		w.chunk.add(s.unordered.pop())
		s.waiting--
	}
	for w.chunk.n < most && s.ready.len() > 0 {
		s.fillFrom(s.ready.pop(), w, most)
	}
	return w.chunk.n > 0
}

// fillFrom takes items of one queue. An item that is not due keeps those behind it waiting.
func (s *Scheduler) fillFrom(q *keyQueue, w *Worker, most int) {
	for w.chunk.n < most && q.items.len() > 0 {
		it := q.items.first()
		early := !it.Due.IsZero() && time.Until(it.Due) > 0
		if early && q.running > 0 {
			return // it keeps its place behind the running items
		}
		q.items.pop()
		s.waiting--
		s.waitsIn(q, it, -1)
		q.running++
		if early {
			s.holdUntilDue(it)
			return
		}
		w.chunk.add(it)
	}
}

// end takes an item out: it was acknowledged, or is given up unacknowledged.
func (s *Scheduler) end(it *Item) {
	if s.cfg.Async {
		s.unfinished.Remove(it)
	}
	s.count--
	s.bytes -= it.Size
	it.Group.unfinished--
	if it.Group.unfinished == 0 && s.awaiting > 0 {
		s.freed.Broadcast()
	}
	if s.count == 0 && s.state == stopping {
		s.work.Broadcast()
	}
	s.leaveQueue(it)
}

// leaveQueue lets the next item of the key run.
func (s *Scheduler) leaveQueue(it *Item) {
	q := it.queue
	if q == nil {
		return
	}
	it.queue = nil
	q.running--
	switch {
	case q.running > 0:
	case q.items.len() > 0:
		s.ready.push(q)
	default:
		s.keepEmpty(q)
	}
}

// wakeReceivers wakes receivers when enough is free: an eighth of the bounds, or anything
// at all when the workers have nothing else to do.
func (s *Scheduler) wakeReceivers() {
	if s.blocked == 0 || s.full() {
		return
	}
	count, bytes := s.count-min(s.heldCount, s.cfg.HeldCount), s.bytes-min(s.heldBytes, s.cfg.HeldBytes)
	if s.unordered.len() == 0 && s.ready.len() == 0 ||
		count <= s.cfg.MaxCount-s.cfg.MaxCount/8 && bytes <= s.cfg.MaxBytes-s.cfg.MaxBytes/8 {
		s.freed.Broadcast()
	}
}

// Hold keeps a running item until due. In a group that is over, or in a scheduler that stops, the
// item ends instead, and Hold returns false. With requeue it goes to the front of its queue when
// its time comes; otherwise it has kept its queue, and the next worker takes it.
func (s *Scheduler) Hold(it *Item, due time.Time, requeue bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it.Due = due
	if s.state != open || it.Group.Over() {
		s.end(it)
		return false
	}
	it.requeue = requeue
	s.holdUntilDue(it)
	return true
}

func (s *Scheduler) holdUntilDue(it *Item) {
	heap.Push(&s.held, it)
	s.heldCount++
	s.heldBytes += it.Size
	if q := it.queue; q != nil && !q.held {
		q.held = true
		s.heldCount += q.items.len()
		s.heldBytes += q.bytes
	}
	s.arm()
	s.wakeReceivers()
}

// unhold ends the effects of holdUntilDue for an item that has left the heap.
func (s *Scheduler) unhold(it *Item) {
	s.heldCount--
	s.heldBytes -= it.Size
	if q := it.queue; q != nil && q.held {
		q.held = false
		s.heldCount -= q.items.len()
		s.heldBytes -= q.bytes
	}
}

// arm sets the timer for the first held item.
func (s *Scheduler) arm() {
	if len(s.held) == 0 {
		return
	}
	wait := max(time.Until(s.held[0].Due), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.wakeHeld)
		return
	}
	s.timer.Reset(wait)
}

// wakeHeld hands out the held items whose time has come.
func (s *Scheduler) wakeHeld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.held) > 0 && !s.held[0].Due.After(now) {
		it := s.held[0]
		heap.Pop(&s.held)
		s.unhold(it)
		if it.requeue {
			s.enqueueFirst(it)
		} else {
			s.resumed.push(it)
		}
		s.wakeWorker()
	}
	s.arm()
}

// StartCopy notes that a copy of a running item is being stored; Resume must follow.
func (s *Scheduler) StartCopy() {
	s.mu.Lock()
	s.copies++
	s.mu.Unlock()
}

// Resume hands an item whose copy has its outcome to the next worker.
func (s *Scheduler) Resume(it *Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies--
	if s.state == stopped {
		s.end(it)
		return
	}
	s.resumed.push(it)
	s.wakeWorker()
	if s.state == stopping {
		s.work.Broadcast() // workers wait for the last copy
	}
}

// GiveBack returns what w took and did not start to those that wait.
func (s *Scheduler) GiveBack(w *Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rest := w.chunk.rest(); len(rest) > 0 {
		s.returnWaiting(rest)
		s.wakeWorker()
	}
}

func (s *Scheduler) returnWaiting(items []*Item) {
	for i := len(items) - 1; i >= 0; i-- {
		it := items[i]
		if s.state != open || it.Group.Over() {
			s.end(it)
			continue
		}
		q := it.queue
		s.waiting++
		if q == nil {
			s.unordered.pushFront(it)
			continue
		}
		q.running--
		q.items.pushFront(it)
		s.waitsIn(q, it, 1)
		if q.running == 0 {
			s.ready.push(q)
		}
	}
}

// Reclaim takes items from workers that have been at one item since before: those that have not
// started, and those that are finished. A slow item must delay neither the items behind it nor the
// keys of those before it.
func (s *Scheduler) Reclaim(workers []*Worker, before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range workers {
		if since := w.Busy(); !since.IsZero() && since.Before(before) {
			s.endFinished(w, nil)
			if rest := w.chunk.rest(); len(rest) > 0 {
				s.returnWaiting(rest)
				s.work.Broadcast()
			}
			s.wakeReceivers()
			s.wakeWorker()
		}
	}
}

// Running calls visit for what each worker is at, and since when, under the scheduler's lock. A
// worker may have gone on meanwhile.
func (s *Scheduler) Running(workers []*Worker, visit func(it *Item, since time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range workers {
		if it, since := w.chunk.latest(), w.Busy(); it != nil && !since.IsZero() {
			visit(it, since)
		}
	}
}

// Drop ends the items that wait, are held, or are to be handed out again, and that match; each
// passes through match once, under the scheduler's lock. Running items stay.
func (s *Scheduler) Drop(match func(*Item) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(match)
	s.freed.Broadcast()
}

func (s *Scheduler) drop(match func(*Item) bool) {
	dropWaiting := func(items *queue[*Item], left func(*Item)) {
		items.filter(func(it *Item) bool {
			if !match(it) {
				return true
			}
			s.waiting--
			left(it)
			it.queue = nil // a waiting item does not occupy its queue
			s.end(it)
			return false
		})
	}
	dropWaiting(&s.unordered, func(*Item) {})
	for key, q := range s.keys {
		dropWaiting(&q.items, func(it *Item) { s.waitsIn(q, it, -1) })
		if q.running == 0 && q.items.len() == 0 {
			delete(s.keys, key)
			if q.empty {
				s.empty--
			}
		}
	}
	s.ready.filter(func(q *keyQueue) bool { return q.items.len() > 0 })
	s.resumed.filter(func(it *Item) bool {
		if !match(it) {
			return true
		}
		s.end(it)
		return false
	})
	var dropped []*Item
	for _, it := range s.held {
		if match(it) {
			dropped = append(dropped, it)
		}
	}
	for _, it := range dropped {
		heap.Remove(&s.held, it.heldAt)
		s.unhold(it)
		s.end(it)
	}
}

// Stop drops every matching item that has not started. Workers return once they have finished
// their running items, and the copies that are being stored have their outcome.
func (s *Scheduler) Stop(match func(*Item) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == open {
		s.state = stopping
	}
	s.drop(match)
	s.work.Broadcast()
	s.freed.Broadcast()
}

// StopNow makes workers return without waiting for copies.
func (s *Scheduler) StopNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = stopped
	if s.timer != nil {
		s.timer.Stop()
	}
	s.work.Broadcast()
	s.freed.Broadcast()
}

// Wake makes those who wait in Push and AwaitEnd look at their group's state.
func (s *Scheduler) Wake() {
	s.mu.Lock()
	s.freed.Broadcast()
	s.mu.Unlock()
}

// AwaitEnd waits until nothing of g is unfinished, or giveUp reports true; the caller then calls
// Wake. It reports whether all has ended.
func (s *Scheduler) AwaitEnd(g *Group, giveUp func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaiting++
	for g.unfinished > 0 && !giveUp() {
		s.freed.Wait()
	}
	s.awaiting--
	return g.unfinished == 0
}

// Void ends the items of g whose handlers have returned, that have no verdict, and that claim
// returns true for. It calls claim under the scheduler's lock. The scheduler is one with Async.
func (s *Scheduler) Void(g *Group, claim func(*Item) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for it := s.unfinished.Head(); it != nil; {
		next := s.unfinished.Next(it)
		if it.Group == g && claim(it) {
			s.end(it)
		}
		it = next
	}
	s.wakeReceivers()
}

// EndFinished ends what w, which does not call Next, has finished.
func (s *Scheduler) EndFinished(w *Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.endFinished(w, w.spare)
	clear(done)
	w.spare = done[:0]
	s.wakeReceivers()
	if s.ready.len() > 0 || s.unordered.len() > 0 {
		s.wakeWorker()
	}
}

// EndReturned makes items whose handlers have returned leave their queues.
func (s *Scheduler) EndReturned(workers []*Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range workers {
		s.endFinished(w, nil)
	}
	s.wakeWorker()
}

// Load is the number and bytes of unfinished items, and the number of those held.
func (s *Scheduler) Load() (count int, bytes int64, held int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.bytes, len(s.held)
}

// Oldest calls visit for unfinished items, oldest first, under the scheduler's lock, until visit
// returns false. The scheduler is one with Async.
func (s *Scheduler) Oldest(visit func(*Item) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for it := s.unfinished.Head(); it != nil && visit(it); it = s.unfinished.Next(it) {
	}
}
