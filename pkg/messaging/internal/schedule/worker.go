package schedule

import (
	"sync"
	"sync/atomic"
	"time"
)

// Worker is one handler goroutine's part of the scheduler. Claim, Start, Idle, Finish and
// HandlerReturned belong to that goroutine; the zero Worker is ready to use.
type Worker struct {
	chunk chunk

	started atomic.Int64 // when the present item was, Unix nanoseconds; 0 when idle
	current atomic.Pointer[Item]

	mu       sync.Mutex // of what follows; taken while holding the scheduler's
	done     []*Item
	spare    []*Item
	returned []*Item
}

// Claim returns the next item to handle, nil when none is left: then call Next.
func (w *Worker) Claim() *Item { return w.chunk.claim() }

// Start says that the worker is at it since at.
func (w *Worker) Start(it *Item, at time.Time) {
	w.current.Store(it)
	w.started.Store(at.UnixNano())
}

// Idle says that the worker is at nothing.
func (w *Worker) Idle() {
	w.started.Store(0)
	w.current.Store(nil)
}

// Busy returns what the worker is at and since when; the zero time for nothing. It may be called
// from any goroutine.
func (w *Worker) Busy() (*Item, time.Time) {
	if n := w.started.Load(); n != 0 {
		return w.current.Load(), time.Unix(0, n)
	}
	return nil, time.Time{}
}

// Finish notes that it has ended. The scheduler is told with the next call of Next, or earlier when
// the worker is slow.
func (w *Worker) Finish(it *Item) {
	w.mu.Lock()
	w.done = append(w.done, it)
	w.mu.Unlock()
}

// HandlerReturned notes that the handler of it, which ends later, has returned, so that the next
// item of its queue may start.
func (w *Worker) HandlerReturned(it *Item) {
	w.mu.Lock()
	w.returned = append(w.returned, it)
	w.mu.Unlock()
}

// chunk is what a worker has taken and not started. The worker claims its items one by one;
// another goroutine may take the rest away, holding the scheduler's lock, which the worker holds
// when it fills the chunk.
type chunk struct {
	items [ChunkSize]*Item
	n     int
	taken atomic.Int32
}

func (c *chunk) reset() {
	clear(c.items[:c.n])
	c.n = 0
	c.taken.Store(0)
}

func (c *chunk) add(it *Item) {
	c.items[c.n] = it
	c.n++
}

func (c *chunk) set(it *Item) {
	c.reset()
	c.add(it)
}

// claim is the next item, nil when none is left.
func (c *chunk) claim() *Item {
	if i := int(c.taken.Add(1)) - 1; i < c.n {
		return c.items[i]
	}
	return nil
}

// rest takes all that was not claimed.
func (c *chunk) rest() []*Item {
	i := int(c.taken.Swap(ChunkSize))
	if i >= c.n {
		return nil
	}
	return c.items[i:c.n]
}
