package publish

import (
	"sync"
	"sync/atomic"
	"time"
)

const watchEvery = time.Second

// watcher wakes the partitions' goroutines: it sends to each added channel once every watchEvery.
// Its timer runs only while channels are added. Its methods may be called from any goroutine.
type watcher struct {
	mu     sync.Mutex
	wakes  map[chan struct{}]struct{}
	active atomic.Int32 // their number
	timer  *time.Timer
}

func newWatcher() *watcher {
	w := &watcher{wakes: make(map[chan struct{}]struct{})}
	w.timer = time.AfterFunc(time.Hour, w.tick)
	w.timer.Stop()
	return w
}

// add sends to wake from now on. wake holds one item; while it is full, nothing is sent.
func (w *watcher) add(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[wake] = struct{}{}
	w.active.Store(int32(len(w.wakes)))
	if len(w.wakes) == 1 {
		w.timer.Reset(watchEvery)
	}
}

// remove stops sending to wake, also when wake was not added.
func (w *watcher) remove(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wakes, wake)
	w.active.Store(int32(len(w.wakes)))
}

func (w *watcher) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wake := range w.wakes {
		select {
		case wake <- struct{}{}:
		default: // its goroutine has not yet received the last one
		}
	}
	if len(w.wakes) > 0 {
		w.timer.Reset(watchEvery)
	}
}

func (w *watcher) count() int { return int(w.active.Load()) }
