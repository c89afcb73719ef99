package schedule

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

// first is the item that pop returns next. The queue is not empty.
func (q *queue[T]) first() T { return q.items[q.head] }

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

// shrink gives back what an empty queue needs no more.
func (q *queue[T]) shrink() {
	const kept = 16
	if cap(q.items) > kept {
		q.items, q.head = nil, 0
	}
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
