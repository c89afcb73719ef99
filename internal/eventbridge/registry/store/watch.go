package store

import "sync"

// watchers are notified of each new snapshot.
type watchers struct {
	mu     sync.Mutex
	closed bool
	all    map[*watcher]struct{}
}

// watcher calls one function from one goroutine.
type watcher struct {
	wake  chan struct{} // holds one element: several changes become one call
	stop  chan struct{}
	ended chan struct{}
	once  sync.Once
}

// Watch calls f with the current snapshot, and again when there is another one, from one goroutine.
// Several changes while f runs become one call. stop ends that and waits for a running call of f,
// so f must not call stop.
func (s *Store) Watch(f func(*Snapshot)) (stop func()) {
	w := &watcher{wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	w.wake <- struct{}{}
	if !s.watchers.add(w) {
		return func() {}
	}
	go func() {
		defer close(w.ended)
		var last *Snapshot
		for {
			select {
			case <-w.stop:
				return
			case <-w.wake:
			}
			if now := s.Snapshot(); now != last {
				last = now
				f(now)
			}
		}
	}()
	return func() {
		s.watchers.remove(w)
		w.signal()
		<-w.ended
	}
}

// signal has the watcher end once a running call has returned.
func (w *watcher) signal() { w.once.Do(func() { close(w.stop) }) }

func (ws *watchers) add(w *watcher) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return false
	}
	if ws.all == nil {
		ws.all = make(map[*watcher]struct{})
	}
	ws.all[w] = struct{}{}
	return true
}

func (ws *watchers) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
}

func (ws *watchers) notify() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all {
		select {
		case w.wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// close ends all watchers. wait returns when no function is being called any more.
func (ws *watchers) close() (wait func()) {
	ws.mu.Lock()
	ws.closed = true
	all := ws.all
	ws.all = nil
	ws.mu.Unlock()
	for w := range all {
		w.signal()
	}
	return func() {
		for w := range all {
			<-w.ended
		}
	}
}
