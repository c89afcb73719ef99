package rabbitmq

import (
	"sync"
	"sync/atomic"
)

// gate lets pass while it is open.
type gate struct {
	mu   sync.Mutex
	up   bool
	pass atomic.Pointer[chan struct{}] // closed while the gate is open
}

func newGate(open bool) *gate {
	g := &gate{}
	c := make(chan struct{})
	g.pass.Store(&c)
	if open {
		g.open()
	}
	return g
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.up {
		g.up = true
		close(*g.pass.Load())
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.up {
		g.up = false
		c := make(chan struct{})
		g.pass.Store(&c)
	}
}

func (g *gate) opened() <-chan struct{} { return *g.pass.Load() }
