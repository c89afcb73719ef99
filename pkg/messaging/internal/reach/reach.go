// Package reach tells why a cluster does not answer: what becomes of a TCP connection to it.
package reach

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// every is how often is looked, at most.
	every = 2 * time.Second
	// fresh is how long what was seen says something about now.
	fresh = 10 * time.Second
)

// Checker looks at the addresses of one cluster. It is safe for concurrent use.
type Checker struct {
	life      context.Context // ends what is under way
	addresses []string
	timeout   time.Duration

	mu     sync.Mutex
	began  time.Time // of the latest look
	ended  time.Time // of the latest that has ended
	err    error
	active bool
}

// New makes a checker that looks until life ends. A connection has timeout to succeed.
func New(life context.Context, addresses []string, timeout time.Duration) *Checker {
	return &Checker{life: life, addresses: addresses, timeout: timeout}
}

// Err is why none of the addresses could be connected to some seconds ago; nil when one could, and
// while that is not known. It does not wait: it begins a look, where the latest is not from just
// now, for the next who asks.
func (c *Checker) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.active && now.Sub(c.began) >= every && c.life.Err() == nil {
		c.active, c.began = true, now
		go c.look()
	}
	if now.Sub(c.ended) > fresh+c.timeout { // a look may take timeout, and says nothing before its end
		return nil
	}
	return c.err
}

func (c *Checker) look() {
	err := c.connect()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = false
	if c.life.Err() == nil {
		c.err, c.ended = err, time.Now()
	}
}

// connect tries all addresses at once.
func (c *Checker) connect() error {
	ctx, cancel := context.WithTimeout(c.life, c.timeout)
	defer cancel()
	results := make(chan error, len(c.addresses))
	for _, address := range c.addresses {
		go func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			results <- err
		}()
	}
	var first error
	for range c.addresses {
		err := <-results
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}
