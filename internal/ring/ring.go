// Package ring has a queue in one array that grows as needed. An item that leaves at the head makes
// room for one at the end; nothing is copied. The package imports nothing of this repository.
package ring

// minSlots is the size of the first array.
const minSlots = 16

// Ring is a queue of T. The zero Ring is empty. It is not safe for concurrent use.
type Ring[T any] struct {
	slots []T // its length is a power of two
	from  int
	len   int
}

// Len is how many elements there are.
func (r *Ring[T]) Len() int { return r.len }

// At returns the element at index i, 0 being the head. i is less than Len.
func (r *Ring[T]) At(i int) *T { return &r.slots[(r.from+i)&(len(r.slots)-1)] }

// Head returns the first element of a ring that is not empty.
func (r *Ring[T]) Head() *T { return &r.slots[r.from] }

// Push appends elements.
func (r *Ring[T]) Push(elements ...T) {
	r.grow(r.len + len(elements))
	for _, e := range elements {
		r.slots[(r.from+r.len)&(len(r.slots)-1)] = e
		r.len++
	}
}

func (r *Ring[T]) grow(need int) {
	if need <= len(r.slots) {
		return
	}
	size := max(len(r.slots), minSlots)
	for size < need {
		size *= 2
	}
	grown := make([]T, size)
	for i := range r.len {
		grown[i] = *r.At(i)
	}
	r.slots, r.from = grown, 0
}

// Pop removes the first element and returns it. The ring is not empty.
func (r *Ring[T]) Pop() T {
	e := *r.Head()
	r.Drop(1)
	return e
}

// Drop removes the first n elements. n is at most Len.
func (r *Ring[T]) Drop(n int) {
	var none T
	for range n {
		r.slots[r.from] = none // it is not kept alive from here
		r.from = (r.from + 1) & (len(r.slots) - 1)
	}
	r.len -= n
}

// DropLast removes the last element of a ring that is not empty.
func (r *Ring[T]) DropLast() {
	var none T
	*r.At(r.len - 1) = none
	r.len--
}

// Clear removes all elements, and gives back their memory.
func (r *Ring[T]) Clear() { *r = Ring[T]{} }
