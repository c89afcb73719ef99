// Package watch wakes goroutines once a second, while they have something to check.
package watch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often a Watcher wakes its goroutines.
const Every = time.Second

// Watcher sends to each added channel once every [Every]. Its timer runs only while channels are
// added. Its methods may be called from any goroutine.
type Watcher struct {
	mu     sync.Mutex
	wakes  map[chan struct{}]struct{}
	active atomic.Int32 // their number
	timer  *time.Timer
}

// New returns a Watcher without channels.
func New() *Watcher {
	w := &Watcher{wakes: make(map[chan struct{}]struct{})}
	w.timer = time.AfterFunc(time.Hour, w.tick)
	w.timer.Stop()
	return w
}

// Add sends to wake every [Every] from now on. wake holds one item; while it holds one, nothing is
// sent to it.
func (w *Watcher) Add(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[wake] = struct{}{}
	w.active.Store(int32(len(w.wakes)))
	if len(w.wakes) == 1 {
		w.timer.Reset(Every)
	}
}

// Remove stops sending to wake. It does nothing if wake was not added.
func (w *Watcher) Remove(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wakes, wake)
	w.active.Store(int32(len(w.wakes)))
}

func (w *Watcher) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wake := range w.wakes {
		select {
		case wake <- struct{}{}:
		default: // its goroutine has not yet received the last one
		}
	}
	if len(w.wakes) > 0 {
		w.timer.Reset(Every)
	}
}

// Count is the number of added channels.
func (w *Watcher) Count() int { return int(w.active.Load()) }
