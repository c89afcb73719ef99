package rabbitmq

import (
	"context"
	"sync"
)

// room bounds bytes. Something larger than all of it goes alone.
type room struct {
	size int64

	mu      sync.Mutex
	used    int64
	waiting int
	freed   chan struct{} // closed and made anew when something is freed while somebody waits
}

func newRoom(size int64) *room { return &room{size: size, freed: make(chan struct{})} }

// take waits for n bytes until ctx or stop ends.
func (r *room) take(ctx context.Context, stop <-chan struct{}, n int64) error {
	for {
		r.mu.Lock()
		if r.used == 0 || r.used+n <= r.size {
			r.used += n
			r.mu.Unlock()
			return nil
		}
		freed := r.freed
		r.waiting++
		r.mu.Unlock()
		err := await(ctx, stop, freed)
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (r *room) give(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if r.waiting > 0 {
		close(r.freed)
		r.freed = make(chan struct{})
	}
}

// empty waits until all is freed.
func (r *room) empty(ctx context.Context) {
	for {
		r.mu.Lock()
		used, freed := r.used, r.freed
		if used > 0 {
			r.waiting++
		}
		r.mu.Unlock()
		if used == 0 {
			return
		}
		err := await(ctx, nil, freed)
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits for c until ctx or stop ends.
func await(ctx context.Context, stop, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return errStopped
	}
}
