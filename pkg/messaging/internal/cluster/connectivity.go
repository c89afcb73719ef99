package cluster

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	checkEvery = 2 * time.Second
	// checkFresh is how long the result of a check is believed.
	checkFresh = 10 * time.Second
)

// Connectivity finds out why a cluster does not answer: it opens TCP connections to its addresses.
// It is safe for concurrent use.
type Connectivity struct {
	life      context.Context // ends checks in progress
	addresses []string
	timeout   time.Duration

	mu     sync.Mutex
	began  time.Time // of the latest check
	ended  time.Time // of the latest that has ended
	err    error
	active bool
}

// NewConnectivity makes one that checks until life ends. A connection has timeout to succeed.
func NewConnectivity(life context.Context, addresses []string, timeout time.Duration) *Connectivity {
	return &Connectivity{life: life, addresses: addresses, timeout: timeout}
}

// Err returns why no address could be connected to at the latest check; nil when one could, and
// when there is no recent check. It does not wait: if that check is old, it begins the next.
func (c *Connectivity) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.active && now.Sub(c.began) >= checkEvery && c.life.Err() == nil {
		c.active, c.began = true, now
		go c.check()
	}
	if now.Sub(c.ended) > checkFresh+c.timeout { // a check may take timeout, and says nothing before its end
		return nil
	}
	return c.err
}

func (c *Connectivity) check() {
	err := c.connect()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = false
	if c.life.Err() == nil {
		c.err, c.ended = err, time.Now()
	}
}

// connect tries all addresses at once.
func (c *Connectivity) connect() error {
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
