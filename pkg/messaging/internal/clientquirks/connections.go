package clientquirks

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Connections follows the reconnections of a session's consumers. A consumer reconnects by itself
// and reports nothing. It asks for a back-off policy when its connection has ended, and resets
// the policy when it is connected again (consumer_partition.go, reconnectToBroker). If the client
// changes, lost acknowledgements and dropped messages go unnoticed until the next session.
//
// When a connection breaks while the client subscribes by it, the client subscribes by the next
// one and then, for the break, a second time by the same one. Before that it empties its queue,
// and the broker, which sees one connected consumer, delivers nothing again: Broken is called.
type Connections struct {
	Current    atomic.Uint32 // counts connections
	Broken     func()        // called when a consumer may have lost messages
	AckLanding time.Duration // in place of the constant, for tests; 0: the constant

	mu    sync.Mutex
	open  int       // being made
	ended time.Time // when the latest one ended
	made  time.Time // when the latest one was made
	stood time.Time // when the one that ended was made
	shaky bool      // the latest one needed more than one attempt
}

const (
	// AckLanding is how long an acknowledgement may be on its way, and with the broker.
	AckLanding = 200 * time.Millisecond
	// RedeliveryBegins is how long after connecting a broker has begun to deliver again the messages
	// that it has no acknowledgement for.
	RedeliveryBegins = 2 * time.Second
	// doubleConnect bounds the time between the two subscriptions of a client that subscribes
	// twice.
	doubleConnect = time.Second
)

// Policy is the client's BackOffPolicyFunc. It notes that a connection has ended. See Asked for
// the other calls.
func (c *Connections) Policy() rawbackoff.Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.ended, c.stood = time.Now(), c.made
	c.Current.Add(1)
	if c.shaky && c.ended.Sub(c.made) < doubleConnect && c.Broken != nil {
		c.Broken()
	}
	return &reconnect{of: c}
}

// Asked must be called after n answers to where a partition ends: each question asks for a
// policy, too (consumer_partition.go, getLastMessageIDAndMarkDeletePosition).
func (c *Connections) Asked(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open -= n
}

// reconnect is the back-off policy of one reconnection.
type reconnect struct {
	backoff.Backoff

	of       *Connections
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

// Lost reports whether an acknowledgement that was sent at a time may have been lost with the
// connection that ended last. The broker has it when that connection lasted AckLanding longer.
// One sent before that connection was made waited in the client for it.
func (c *Connections) Lost(sent time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stood.After(sent) {
		sent = c.stood
	}
	return c.ended.Sub(sent) < cmp.Or(c.AckLanding, AckLanding)
}

// Redelivering reports whether brokers have begun their redeliveries.
func (c *Connections) Redelivering() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == 0 && time.Since(c.made) >= RedeliveryBegins
}
