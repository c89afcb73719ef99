package messaging

import (
	"sync/atomic"
	"time"
)

// queue is a first-in first-out queue that can also be pushed to at its front.
// The zero queue is empty. It shrinks back when it runs empty.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *queue[T]) pushFront(v T) {
	if q.head == 0 {
		grown := make([]T, len(q.items)+4, 2*len(q.items)+8)
		q.head = 4
		copy(grown[q.head:], q.items)
		q.items = grown
	}
	q.head--
	q.items[q.head] = v
}

func (q *queue[T]) pop() T {
	var zero T
	v := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > 4096 {
			q.items = nil
		}
	}
	return v
}

// filter keeps the items that keep reports true for, in order.
func (q *queue[T]) filter(keep func(T) bool) {
	kept := make([]T, 0, q.len())
	for _, v := range q.items[q.head:] {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	q.items, q.head = kept, 0
}

// chunk is what a worker has taken and not started. The worker claims its items
// one by one; another goroutine may take the rest away, holding the scheduler's
// lock, which the worker holds when it fills the chunk.
type chunk struct {
	items [chunkSize]*task
	n     int
	taken atomic.Int32
}

func (c *chunk) reset() {
	clear(c.items[:c.n])
	c.n = 0
	c.taken.Store(0)
}

func (c *chunk) add(d *task) {
	c.items[c.n] = d
	c.n++
}

func (c *chunk) set(d *task) {
	c.reset()
	c.add(d)
}

// claim is the next item, nil when none is left.
func (c *chunk) claim() *task {
	if i := int(c.taken.Add(1)) - 1; i < c.n {
		return c.items[i]
	}
	return nil
}

// rest takes all that was not claimed.
func (c *chunk) rest() []*task {
	i := int(c.taken.Swap(chunkSize))
	if i >= c.n {
		return nil
	}
	return c.items[i:c.n]
}

// busySlot says what a worker is at, for those who watch it.
type busySlot struct {
	start atomic.Int64 // unix nanoseconds, 0 when idle
	d     atomic.Pointer[task]
}

func (b *busySlot) set(d *task, at time.Time) {
	b.d.Store(d)
	b.start.Store(at.UnixNano())
}

func (b *busySlot) clear() {
	b.start.Store(0)
	b.d.Store(nil)
}

func (b *busySlot) since() time.Time {
	if n := b.start.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// heldHeap orders held deliveries by the time they are due.
type heldHeap []*task

func (h heldHeap) Len() int           { return len(h) }
func (h heldHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h heldHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heldAt, h[j].heldAt = i, j
}

func (h *heldHeap) Push(v any) {
	d, _ := v.(*task) // container/heap passes on what hold gave it
	d.heldAt = len(*h)
	*h = append(*h, d)
}

func (h *heldHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	d.heldAt = -1
	*h = old[:len(old)-1]
	return d
}

// taskList is an intrusive list, oldest first.
type taskList struct{ head, tail *task }

func (l *taskList) add(d *task) {
	d.prev = l.tail
	if l.tail == nil {
		l.head = d
	} else {
		l.tail.next = d
	}
	l.tail = d
}

func (l *taskList) remove(d *task) {
	if d.prev == nil {
		l.head = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next == nil {
		l.tail = d.prev
	} else {
		d.next.prev = d.prev
	}
	d.prev, d.next = nil, nil
}
