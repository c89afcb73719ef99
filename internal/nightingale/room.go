package nightingale

import (
	"context"
	"slices"
	"sync"
)

// room bounds what the publishers of all topics hold together. One of them may hold as
// much as is left for the others: a topic that is stuck takes half of it, two take a
// third each, and there is always some left.
type room struct {
	limit int64

	mu      sync.Mutex
	used    int64
	waiting []*roomShare // those with waiters, the one that waits the longest first
}

func newRoom(limit int64) *room { return &room{limit: limit} }

// roomShare is what one publisher holds.
type roomShare struct {
	room *room

	// Under room.mu.
	used    int64
	waiters []*roomWaiter // in their order
}

type roomWaiter struct {
	size int64
	let  chan struct{} // closed when it has its room
}

// fits reports whether n more bytes may be held. Who holds nothing needs no share, only
// the room. room.mu is held.
func (s *roomShare) fits(n int64) bool {
	left := s.room.limit - s.room.used
	return n <= left && (s.used == 0 || s.used+n <= left)
}

// take holds n bytes more, whatever the bounds. room.mu is held.
func (s *roomShare) take(n int64) {
	s.used += n
	s.room.used += n
}

// acquire waits for n bytes, at most the room's limit, behind those who wait already.
func (s *roomShare) acquire(ctx context.Context, n int64) error {
	r := s.room
	r.mu.Lock()
	if len(s.waiters) == 0 && s.fits(n) {
		s.take(n)
		r.mu.Unlock()
		return nil
	}
	w := &roomWaiter{size: n, let: make(chan struct{})}
	if s.waiters = append(s.waiters, w); len(s.waiters) == 1 {
		r.waiting = append(r.waiting, s)
	}
	r.mu.Unlock()
	select {
	case <-w.let:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(s.waiters, w)
	if at < 0 {
		return nil // it was let in meanwhile
	}
	s.waiters = slices.Delete(s.waiters, at, at+1)
	r.let() // one that was behind it may be smaller
	return ctx.Err()
}

// release gives n bytes back.
func (s *roomShare) release(n int64) {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.take(-n)
	s.room.let()
}

// let lets in who waits and fits. mu is held.
func (r *room) let() {
	r.waiting = slices.DeleteFunc(r.waiting, func(s *roomShare) bool {
		n := 0
		for ; n < len(s.waiters) && s.fits(s.waiters[n].size); n++ {
			s.take(s.waiters[n].size)
			close(s.waiters[n].let)
		}
		s.waiters = slices.Delete(s.waiters, 0, n)
		return len(s.waiters) == 0
	})
}
