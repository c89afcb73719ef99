// Package watch wakes goroutines from time to time, while they have something to look after.
package watch

import (
	"sync"
	"sync/atomic"
	"time"
)

// Every is how often a Watcher wakes those whom it watches.
const Every = time.Second

// Watcher wakes those who were added, once every [Every]. Others cost nothing, and while there are
// none no timer runs. Its methods may be called from any goroutine.
type Watcher struct {
	mu     sync.Mutex
	wakes  map[chan struct{}]struct{}
	active atomic.Int32 // their number
	timer  *time.Timer
}

// New returns a Watcher of nobody.
func New() *Watcher {
	w := &Watcher{wakes: make(map[chan struct{}]struct{})}
	w.timer = time.AfterFunc(time.Hour, w.tick)
	w.timer.Stop()
	return w
}

// Add has something sent to wake from now on, which holds one item and is left out while it does.
func (w *Watcher) Add(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[wake] = struct{}{}
	w.active.Store(int32(len(w.wakes)))
	if len(w.wakes) == 1 {
		w.timer.Reset(Every)
	}
}

// Remove ends what Add began, if it did.
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
		default: // it still has the last one to answer
		}
	}
	if len(w.wakes) > 0 {
		w.timer.Reset(Every)
	}
}

// Count is the number of those who are watched.
func (w *Watcher) Count() int { return int(w.active.Load()) }
