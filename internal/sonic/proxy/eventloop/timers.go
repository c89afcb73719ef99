// Package eventloop provides the parts of an event loop: a poller of sockets, timers and buffers.
// It may not import the other packages of the proxy.
package eventloop

import (
	"container/heap"
	"math"
	"time"
)

// Timer runs a function at a time. Only its loop may use it.
type Timer struct {
	at    time.Time
	f     func()
	index int // in the heap, -1 if it is not in the heap
}

// Timers are the timers of one loop.
type Timers struct{ heap timerHeap }

// Start returns a timer that runs f at a time.
func (t *Timers) Start(at time.Time, f func()) *Timer {
	timer := &Timer{at: at, f: f}
	heap.Push(&t.heap, timer)
	return timer
}

// Stop ends a timer, if it is not nil and has not fired.
func (t *Timers) Stop(timer *Timer) {
	if timer != nil && timer.index >= 0 {
		heap.Remove(&t.heap, timer.index)
	}
}

// Wait returns the milliseconds until the first timer, -1 if there is none.
func (t *Timers) Wait() int {
	if len(t.heap) == 0 {
		return -1
	}
	return clampMilliseconds(time.Until(t.heap[0].at))
}

// Fire runs the functions of all timers up to now.
func (t *Timers) Fire(now time.Time) {
	for len(t.heap) > 0 && !t.heap[0].at.After(now) {
		timer, ok := heap.Pop(&t.heap).(*Timer)
		if ok {
			timer.f()
		}
	}
}

type timerHeap []*Timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	if t, ok := x.(*Timer); ok {
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

// clampMilliseconds rounds up: a timer must not fire early.
func clampMilliseconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// Stopped returns a timer that never fires.
func Stopped() *Timer { return &Timer{index: -1} }
