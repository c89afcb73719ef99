package auth

import (
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

const (
	// faultGrace is how long a lookup may go on before a fault ends its caller's wait with an
	// explanation: another host of the URL may do.
	faultGrace = time.Second
	// lookupKept is how long a lookup's result is kept for a caller that waits no more.
	lookupKept = 5 * time.Second
)

// explainedClient is an underlying client whose errors say what was in the way.
type explainedClient struct {
	pulsar.Client
	faults *Faults
	lines  throttle.Changes // about topics whose lookup fails

	mu      sync.Mutex
	lookups map[string]*lookup
}

// Explain returns a client whose errors say what was in the way. f reads raw's log
// ([Faults.Logger]).
func (f *Faults) Explain(raw pulsar.Client) pulsar.Client {
	return &explainedClient{Client: raw, faults: f, lookups: make(map[string]*lookup)}
}

// lookup is a request for a topic's partitions that goes on after its caller.
type lookup struct {
	began  time.Time
	done   chan struct{}
	topics []string
	err    error
	ended  time.Time // valid, as the two above, once done is closed
}

// TopicPartitions returns, after a moment, as soon as it is known what is in the
// way. The request goes on behind until the operation timeout, and calls after
// that one join it: a broker that refuses us is not asked more often.
func (c *explainedClient) TopicPartitions(topic string) ([]string, error) {
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

func (c *explainedClient) lookup(topic string) *lookup {
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

// say logs the first of several failures in a row, unless the broker's fault was
// logged.
func (c *explainedClient) say(topic string, err error) {
	if err == nil {
		c.lines.Forget(topic)
		return
	}
	// One line for all failures in a row: their texts hold the numbers of requests.
	if c.lines.Allow(topic, "failing") && !lasting(err) {
		c.faults.log.Warn("cannot look up topic", zap.String("topic", topic), zap.Error(err))
	}
}

// result is the lookup's, for those who waited and for nobody after them.
func (c *explainedClient) result(topic string, l *lookup) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[topic] == l {
		delete(c.lookups, topic)
	}
	return slices.Clone(l.topics), l.err
}

// CreateProducer is the underlying client's, with the reason in its error.
func (c *explainedClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	began := time.Now()
	p, err := c.Client.CreateProducer(o)
	return p, c.faults.explain(began, err)
}

// Subscribe is the underlying client's, with the reason in its error.
func (c *explainedClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	began := time.Now()
	s, err := c.Client.Subscribe(o)
	return s, c.faults.explain(began, err)
}

// CreateReader is the underlying client's, with the reason in its error.
func (c *explainedClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	began := time.Now()
	r, err := c.Client.CreateReader(o)
	return r, c.faults.explain(began, err)
}
