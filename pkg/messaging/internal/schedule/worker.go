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
	spare   []*Item      // empty, takes the place of done

	mu       sync.Mutex // of what follows; taken while holding the scheduler's
	done     []*Item
	returned []*Item
}

// Claim returns the next item to handle, nil when none is left: then call Next.
func (w *Worker) Claim() *Item { return w.chunk.claim() }

// Start says that the worker is at an item since at.
func (w *Worker) Start(at time.Time) { w.started.Store(at.UnixNano()) }

// Idle says that the worker is at nothing.
func (w *Worker) Idle() { w.started.Store(0) }

// Busy returns since when the worker is at its present item; the zero time when it is at none. It
// may be called from any goroutine.
func (w *Worker) Busy() time.Time {
	if n := w.started.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// Finish notes that it has ended. The scheduler learns of it with the next call of Next, or earlier
// if the worker is slow.
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

// chunk has the items that a worker has taken and not started. The worker claims its items one by
// one; a goroutine that holds the scheduler's lock may take the rest away. The worker holds that
// lock when it fills the chunk.
type chunk struct {
	items [ChunkSize]*Item
	n     int
	taken atomic.Int32

	// Guarded by the scheduler's lock.
	cut     bool // the rest was taken away
	claimed int  // when it was
}

func (c *chunk) reset() {
	clear(c.items[:c.n])
	c.n, c.cut, c.claimed = 0, false, 0
	c.taken.Store(0)
}

func (c *chunk) add(it *Item) {
	c.items[c.n] = it
	c.n++
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
	c.cut, c.claimed = true, i
	return c.items[i:c.n]
}

// latest is the item that was claimed last, nil when none is known. The scheduler's lock is held.
func (c *chunk) latest() *Item {
	claimed := c.claimed
	if !c.cut {
		claimed = min(int(c.taken.Load()), c.n)
	}
	if claimed == 0 {
		return nil
	}
	return c.items[claimed-1]
}
