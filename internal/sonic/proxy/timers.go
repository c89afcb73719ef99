package proxy

import (
	"container/heap"
	"time"
)

// timer runs f at a time. Only its loop may touch it.
type timer struct {
	at    time.Time
	f     func()
	index int // in the heap, -1 when it is not there
}

// timers are those of one loop, soonest first.
type timers struct{ heap timerHeap }

func (t *timers) start(at time.Time, f func()) *timer {
	timer := &timer{at: at, f: f}
	heap.Push(&t.heap, timer)
	return timer
}

// stop forgets a timer, if it is not nil and has not fired.
func (t *timers) stop(timer *timer) {
	if timer != nil && timer.index >= 0 {
		heap.Remove(&t.heap, timer.index)
	}
}

// wait returns the milliseconds until the first one, -1 when there is none.
func (t *timers) wait() int {
	if len(t.heap) == 0 {
		return -1
	}
	return clampMilliseconds(time.Until(t.heap[0].at))
}

func (t *timers) fire(now time.Time) {
	for len(t.heap) > 0 && !t.heap[0].at.After(now) {
		timer, ok := heap.Pop(&t.heap).(*timer)
		if ok {
			timer.f()
		}
	}
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	if t, ok := x.(*timer); ok {
		t.index = len(*h)
		*h = append(*h, t)
	}
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.index = -1
	return t
}
