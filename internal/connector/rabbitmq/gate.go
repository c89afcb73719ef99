package rabbitmq

import (
	"context"
	"sync"
	"sync/atomic"
)

// gate is open or closed; goroutines wait on opened until it is open.
type gate struct {
	mu       sync.Mutex
	isOpen   bool
	whenOpen atomic.Pointer[chan struct{}] // closed while the gate is open
}

func newGate(open bool) *gate {
	g := &gate{}
	c := make(chan struct{})
	g.whenOpen.Store(&c)
	if open {
		g.open()
	}
	return g
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isOpen {
		g.isOpen = true
		close(*g.whenOpen.Load())
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOpen {
		g.isOpen = false
		c := make(chan struct{})
		g.whenOpen.Store(&c)
	}
}

func (g *gate) opened() <-chan struct{} { return *g.whenOpen.Load() }

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
