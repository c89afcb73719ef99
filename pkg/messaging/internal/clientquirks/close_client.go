package clientquirks

import (
	"sync"
	"time"
)

// openingTimeout is how long Openings.Wait waits.
const openingTimeout = time.Second

// Openings counts the producers, consumers and readers that an underlying client opens, and its
// lookups. Its Close must wait for them: it notifies producers whose fields are still being set
// (producer_partition.go, newPartitionProducer and ConnectionClosed), which is a data race, and a
// lookup makes a connection that nobody closes (internal/connection_pool.go, GetConnection after
// Close). When the client does both safely, this file may go.
type Openings struct {
	mu      sync.Mutex
	opening int
	opened  chan struct{} // closed when nothing is being opened; nil while nobody waits
}

// Begin counts an opening until end is called.
func (c *Openings) Begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.opening--; c.opening == 0 && c.opened != nil {
			close(c.opened)
			c.opened = nil
		}
	}
}

// Wait returns when nothing is being opened, or after a second.
func (c *Openings) Wait() {
	c.mu.Lock()
	if c.opening > 0 && c.opened == nil {
		c.opened = make(chan struct{})
	}
	opened := c.opened
	c.mu.Unlock()
	if opened == nil {
		return
	}
	select {
	case <-opened:
	case <-time.After(openingTimeout):
	}
}
