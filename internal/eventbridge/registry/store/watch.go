package store

import "context"

// Watch calls f with the current snapshot, and again when there is another one, from one goroutine.
// Several changes while f runs become one call. stop, and Close of the store, end that. stop waits
// for a running call of f, so f must not call stop.
func (s *Store) Watch(f func(*Snapshot)) (stop func()) {
	ctx, cancel := context.WithCancel(s.life)
	ended := make(chan struct{})
	s.running.Go(func() {
		defer close(ended)
		for last := (*Snapshot)(nil); ctx.Err() == nil; {
			next := s.nextSnapshot()
			if now := s.Snapshot(); now != last {
				last = now
				f(now)
			}
			select {
			case <-ctx.Done():
			case <-next:
			}
		}
	})
	return func() {
		cancel()
		<-ended
	}
}

// nextSnapshot returns a channel that is closed when there is another snapshot than now.
func (s *Store) nextSnapshot() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}
