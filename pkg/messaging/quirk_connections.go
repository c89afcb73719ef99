package messaging

import (
	"sync"
	"sync/atomic"
	"time"

	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// connections follows how the underlying consumers of a session connect again, which they do by
// themselves and without a word.
type connections struct {
	current atomic.Uint32 // counts them
	broken  func()        // called when an underlying consumer may have lost messages

	mu    sync.Mutex
	open  int       // being made
	ended time.Time // when the latest one was known to have ended
	made  time.Time // when the latest one was made
	stood time.Time // when the one that ended was made
	shaky bool      // it was made behind one that broke while it was being made
}

const (
	// ackLanding is how long an acknowledgement may be on its way, and with the broker.
	ackLanding = 200 * time.Millisecond
	// redeliveryBegins is how long after connecting a broker has begun to deliver again what it
	// has no acknowledgement for.
	redeliveryBegins = 2 * time.Second
	// doubleConnect is how soon the client connects twice when it does so by mistake.
	doubleConnect = time.Second
)

// policy notes that a connection has ended: the underlying client asks for a back-off policy then,
// before it makes the next, and resets it when that is made (pulsar-client-go v0.21.0
// consumer_partition.go, reconnectToBroker). See asked for when it asks besides.
//
// When a connection breaks while the client subscribes by it, the client subscribes by the next one
// and then, for the break, a second time by the same one. It empties its queue before, and the
// broker, for which it is connected, delivers nothing again.
func (c *connections) policy() rawbackoff.Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.ended, c.stood = time.Now(), c.made
	c.current.Add(1)
	if c.shaky && c.ended.Sub(c.made) < doubleConnect && c.broken != nil {
		c.broken()
	}
	return &reconnect{of: c}
}

// asked is called when underlying consumers have answered n times where their partitions end. They
// have asked for a back-off policy each time, and were not connecting (consumer_partition.go,
// getLastMessageIDAndMarkDeletePosition).
func (c *connections) asked(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open -= n
}

// reconnect is the back-off of one connection being made.
type reconnect struct {
	backoff.Backoff

	of       *connections
	attempts int
	made     bool
}

// Next is called when an attempt has failed.
func (r *reconnect) Next() time.Duration {
	r.attempts++
	return r.Backoff.Next()
}

// Reset is called when the connection is made.
func (r *reconnect) Reset() {
	r.Backoff.Reset()
	c := r.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.made {
		return
	}
	r.made = true
	c.open--
	c.made, c.shaky = time.Now(), r.attempts > 0
}

// lost reports whether an acknowledgement that was sent at a time may have been lost with the
// latest connection. On one that stood for longer the broker had it. What was sent before that
// connection was made waited for it in the underlying client.
func (c *connections) lost(sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stood.After(sent) {
		sent = c.stood
	}
	return c.ended.Sub(sent) < ackLanding
}

// redelivering reports whether brokers have begun to deliver again what they are going to.
func (c *connections) redelivering() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == 0 && time.Since(c.made) >= redeliveryBegins
}
