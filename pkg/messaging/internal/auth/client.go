package auth

import (
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

const (
	// faultGrace is how long a lookup may continue before a fault ends its caller's wait with an
	// explanation: another host of the URL may do.
	faultGrace = time.Second
	// lookupKept is how long a lookup's result is kept for a caller that waits no more.
	lookupKept = 5 * time.Second
)

// client is an underlying client whose errors say why a connection failed, and whose Close waits
// for calls that open something.
type client struct {
	pulsar.Client
	faults   *Faults
	lines    throttle.Changes // about topics whose lookup fails
	openings clientquirks.Openings

	mu      sync.Mutex
	lookups map[string]*lookup
}

// Wrap returns a client whose errors say why a connection failed, and whose Close waits for calls
// that open something. f reads raw's log ([Faults.Logger]).
func (f *Faults) Wrap(raw pulsar.Client) pulsar.Client {
	return &client{Client: raw, faults: f, lookups: make(map[string]*lookup)}
}

// Close closes the connections.
func (c *client) Close() {
	c.openings.Wait()
	c.Client.Close()
}

// lookup is a request for a topic's partitions that continues after its caller.
type lookup struct {
	began  time.Time
	done   chan struct{}
	topics []string
	err    error
	ended  time.Time // valid, as the two above, once done is closed
}

// TopicPartitions returns, after faultGrace, as soon as a fault is known. The lookup continues
// until the operation timeout, and later calls join it: a broker that refuses us is not asked more
// often.
func (c *client) TopicPartitions(topic string) ([]string, error) {
	defer c.openings.Begin()()
	l := c.lookup(topic)
	grace := time.NewTimer(time.Until(l.began.Add(faultGrace)))
	defer grace.Stop()
	select {
	case <-l.done:
		return c.result(topic, l)
	case <-grace.C:
	}
	for {
		changed, err := c.faults.since(l.began)
		select {
		case <-l.done:
			return c.result(topic, l)
		default:
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-l.done:
		case <-changed:
		}
	}
}

func (c *client) lookup(topic string) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lookups[topic]; l != nil {
		select {
		case <-l.done:
			if time.Since(l.ended) < lookupKept {
				return l
			}
		default:
			return l
		}
	}
	l := &lookup{began: time.Now(), done: make(chan struct{})}
	c.lookups[topic] = l
	go func() {
		defer close(l.done)
		topics, err := c.Client.TopicPartitions(topic)
		l.topics, l.err, l.ended = topics, c.faults.explain(l.began, err), time.Now()
		c.say(topic, l.err)
	}()
	return l
}

// say logs the first of several failures in a row, unless the broker's fault was logged.
func (c *client) say(topic string, err error) {
	if err == nil {
		c.lines.Forget(topic)
		return
	}
	// One line for all failures in a row: their texts hold the numbers of requests.
	if c.lines.Allow(topic, "failing") && !lasting(err) {
		c.faults.log.Warn("cannot look up topic", zap.String("topic", topic), zap.Error(err))
	}
}

// result returns the lookup's result to the callers that waited for it. Later callers look up
// again.
func (c *client) result(topic string, l *lookup) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[topic] == l {
		delete(c.lookups, topic)
	}
	return slices.Clone(l.topics), l.err
}

func (c *client) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	defer c.openings.Begin()()
	began := time.Now()
	p, err := c.Client.CreateProducer(o)
	return p, c.faults.explain(began, err)
}

func (c *client) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	defer c.openings.Begin()()
	began := time.Now()
	s, err := c.Client.Subscribe(o)
	return s, c.faults.explain(began, err)
}

func (c *client) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	defer c.openings.Begin()()
	began := time.Now()
	r, err := c.Client.CreateReader(o)
	return r, c.faults.explain(began, err)
}
