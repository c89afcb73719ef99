package clientquirks

import (
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// openingTimeout bounds how long Close waits for producers, consumers and readers that are being
// opened.
const openingTimeout = time.Second

// RawClient is a client whose Close waits for what is being opened. The client's own Close
// notifies producers whose fields are still being set (producer_partition.go,
// newPartitionProducer and ConnectionClosed): a data race. A lookup that is under way makes a
// connection that nobody closes (internal/connection_pool.go, GetConnection after Close). When
// the client does both safely, this file may go.
type RawClient struct {
	pulsar.Client

	mu      sync.Mutex
	opening int
	opened  chan struct{} // closed when nothing is being opened; nil while nobody waits
}

// Close closes the connections.
func (c *RawClient) Close() {
	c.mu.Lock()
	if c.opening > 0 && c.opened == nil {
		c.opened = make(chan struct{})
	}
	opened := c.opened
	c.mu.Unlock()
	if opened != nil {
		timeout := time.NewTimer(openingTimeout)
		defer timeout.Stop()
		select {
		case <-opened:
		case <-timeout.C:
		}
	}
	c.Client.Close()
}

// CreateProducer delays Close.
func (c *RawClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	defer c.begin()()
	return c.Client.CreateProducer(o)
}

// Subscribe delays Close.
func (c *RawClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	defer c.begin()()
	return c.Client.Subscribe(o)
}

// CreateReader delays Close.
func (c *RawClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	defer c.begin()()
	return c.Client.CreateReader(o)
}

// TopicPartitions delays Close.
func (c *RawClient) TopicPartitions(topic string) ([]string, error) {
	defer c.begin()()
	return c.Client.TopicPartitions(topic)
}

// begin counts an opening until end is called.
func (c *RawClient) begin() (end func()) {
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
