// Package list has a doubly linked list whose links are in its elements: adding and removing an
// element allocates nothing. It imports no other package of this repository.
package list

// Links are what an element embeds or holds for one list.
type Links[T any] struct{ prev, next *T }

// Element is a pointer to T that knows T's links.
type Element[T any] interface {
	*T
	Links() *Links[T]
}

// List is a list of elements T. An element is in one list at a time. The zero List is empty.
// It is not safe for concurrent use.
type List[T any, E Element[T]] struct{ head, tail *T }

// Head is the first element, nil when the list is empty.
func (l *List[T, E]) Head() *T { return l.head }

// Next is the element behind e, nil behind the last.
func (l *List[T, E]) Next(e *T) *T { return E(e).Links().next }

// Push appends e.
func (l *List[T, E]) Push(e *T) {
	k := E(e).Links()
	k.prev, k.next = l.tail, nil
	if l.tail == nil {
		l.head = e
	} else {
		E(l.tail).Links().next = e
	}
	l.tail = e
}

// Remove takes e out. It must be in the list.
func (l *List[T, E]) Remove(e *T) {
	k := E(e).Links()
	if k.prev == nil {
		l.head = k.next
	} else {
		E(k.prev).Links().next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		E(k.next).Links().prev = k.prev
	}
	k.prev, k.next = nil, nil
}

// Swap puts n, which is in no list, in e's place.
func (l *List[T, E]) Swap(e, n *T) {
	k := E(e).Links()
	*E(n).Links() = *k
	if k.prev == nil {
		l.head = n
	} else {
		E(k.prev).Links().next = n
	}
	if k.next == nil {
		l.tail = n
	} else {
		E(k.next).Links().prev = n
	}
	k.prev, k.next = nil, nil
}
