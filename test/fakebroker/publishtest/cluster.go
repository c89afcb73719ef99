// Package publishtest has a fake Pulsar cluster for tests of publishing. Of Aviary, it imports
// only pkg/messaging.
package publishtest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Cluster is a fake Pulsar. It records the messages of each topic. Tests choose its behaviour.
type Cluster struct {
	Mu      sync.Mutex
	Records map[string][]string
	Opens   map[string]int
	Closes  map[string]int
	Refuse  map[string]error           // error of opening a topic
	Broken  map[string]error           // error of publishing to an open topic
	Hold    map[string][]func()        // for each topic that is a key: acknowledgements that wait
	Parts   int                        // number of partitions of each topic
	Opening map[string]<-chan struct{} // opening the topic waits for this channel
}

// NewCluster returns a cluster that accepts all records.
func NewCluster() *Cluster {
	return &Cluster{Records: map[string][]string{}, Opens: map[string]int{}, Closes: map[string]int{}, Parts: 1}
}

// Open returns a publisher of a topic.
func (c *Cluster) Open(ctx context.Context, topic string) (*Publisher, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Opens[topic]++
	if err := c.Refuse[topic]; err != nil {
		return nil, err
	}
	if wait := c.Opening[topic]; wait != nil {
		c.Mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		c.Mu.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return &Publisher{c, topic}, nil
}

// Publisher publishes to a topic of a cluster.
type Publisher struct {
	c     *Cluster
	topic string
}

// PublishAsync behaves like that of messaging.Publisher.
func (p *Publisher) PublishAsync(_ context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	p.c.Mu.Lock()
	defer p.c.Mu.Unlock()
	if err := p.c.Broken[p.topic]; err != nil {
		done(messaging.MessageID{}, err)
		return
	}
	p.c.Records[p.topic] = append(p.c.Records[p.topic], string(r.Payload))
	if _, held := p.c.Hold[p.topic]; held {
		p.c.Hold[p.topic] = append(p.c.Hold[p.topic], func() { done(messaging.MessageID{}, nil) })
		return
	}
	done(messaging.MessageID{}, nil)
}

// Partitions returns the number of the topic's partitions.
func (p *Publisher) Partitions() int { return p.c.Parts }

// Flush waits until ctx ends.
func (p *Publisher) Flush(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Close counts its calls.
func (p *Publisher) Close(context.Context) error {
	p.c.Mu.Lock()
	defer p.c.Mu.Unlock()
	p.c.Closes[p.topic]++
	return nil
}

// Topics returns the topics that have records, sorted.
func (c *Cluster) Topics() []string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	var names []string
	for name := range c.Records {
		names = append(names, strings.TrimPrefix(name, "persistent://public/"))
	}
	slices.Sort(names)
	return names
}

// Count returns how many records a topic has.
func (c *Cluster) Count(topic string) int {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return len(c.Records[topic])
}

// Terminate makes an open topic refuse further records, and opening it again fail.
func (c *Cluster) Terminate(topic string) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.Broken = map[string]error{topic: messaging.ErrTopicTerminated}
	c.Refuse = map[string]error{topic: messaging.ErrTopicTerminated}
}
