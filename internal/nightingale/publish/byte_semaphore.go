package publish

import (
	"context"
	"slices"
	"sync"
)

// byteSemaphore bounds the bytes that the publishers of all topics hold together. One publisher may
// hold at most as much as it leaves free. So one stuck topic takes at most half of the bytes, two
// take a third each, and some bytes always remain free.
type byteSemaphore struct {
	limit int64

	mu      sync.Mutex
	used    int64
	waiting []*byteShare // shares with waiters, the longest waiting first
}

func newByteSemaphore(limit int64) *byteSemaphore { return &byteSemaphore{limit: limit} }

// byteShare is the share of one publisher.
type byteShare struct {
	semaphore *byteSemaphore

	// Guarded by semaphore.mu.
	used    int64
	waiters []*byteWaiter // in order of arrival
}

type byteWaiter struct {
	size int64
	let  chan struct{} // closed when it has its bytes
}

// fits reports whether the publisher may hold n more bytes. For a publisher that holds nothing,
// enough free bytes suffice. The caller holds semaphore.mu.
func (s *byteShare) fits(n int64) bool {
	left := s.semaphore.limit - s.semaphore.used
	return n <= left && (s.used == 0 || s.used+n <= left)
}

// take adds n bytes without checking the bounds. The caller holds semaphore.mu.
func (s *byteShare) take(n int64) {
	s.used += n
	s.semaphore.used += n
}

// acquire waits for n bytes, after earlier waiters of the same publisher. n must not exceed the
// semaphore's limit.
func (s *byteShare) acquire(ctx context.Context, n int64) error {
	r := s.semaphore
	r.mu.Lock()
	if len(s.waiters) == 0 && s.fits(n) {
		s.take(n)
		r.mu.Unlock()
		return nil
	}
	w := &byteWaiter{size: n, let: make(chan struct{})}
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
		return nil // it got its bytes meanwhile
	}
	s.waiters = slices.Delete(s.waiters, at, at+1)
	r.let() // the next waiter may need fewer bytes
	return ctx.Err()
}

// release returns n bytes.
func (s *byteShare) release(n int64) {
	s.semaphore.mu.Lock()
	defer s.semaphore.mu.Unlock()
	s.take(-n)
	s.semaphore.let()
}

// let gives waiters their bytes, as far as they fit. The caller holds mu.
func (r *byteSemaphore) let() {
	r.waiting = slices.DeleteFunc(r.waiting, func(s *byteShare) bool {
		n := 0
		for ; n < len(s.waiters) && s.fits(s.waiters[n].size); n++ {
			s.take(s.waiters[n].size)
			close(s.waiters[n].let)
		}
		s.waiters = slices.Delete(s.waiters, 0, n)
		return len(s.waiters) == 0
	})
}
