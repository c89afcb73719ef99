package messaging

import (
	"sync"
	"sync/atomic"
	"time"
)

// watcher asks the partitions that have published lately, once a second, to look after what
// they have pending. A client's publishers share one. Idle partitions cost nothing, and while
// all are idle no timer runs.
type watcher struct {
	mu         sync.Mutex
	partitions map[*partitionPublisher]struct{}
	active     atomic.Int32 // their number
	timer      *time.Timer
}

func newWatcher() *watcher {
	w := &watcher{partitions: make(map[*partitionPublisher]struct{})}
	w.timer = time.AfterFunc(time.Hour, w.tick)
	w.timer.Stop()
	return w
}

// add watches pp.
func (w *watcher) add(pp *partitionPublisher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partitions[pp] = struct{}{}
	w.active.Store(int32(len(w.partitions)))
	if len(w.partitions) == 1 {
		w.timer.Reset(tick)
	}
}

// remove watches pp no more.
func (w *watcher) remove(pp *partitionPublisher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.partitions, pp)
	w.active.Store(int32(len(w.partitions)))
}

func (w *watcher) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pp := range w.partitions {
		select {
		case pp.check <- struct{}{}:
		default: // it still has the last one to answer
		}
	}
	if len(w.partitions) > 0 {
		w.timer.Reset(tick)
	}
}

// count is the number of partitions that have published lately.
func (w *watcher) count() int { return int(w.active.Load()) }
