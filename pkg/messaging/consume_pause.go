package messaging

import "sync"

// pauses are the sources that a consumer does not receive from at present.
type pauses struct {
	mu sync.Mutex
	by map[string]chan struct{} // by source; closed by resume
}

// Pause stops receiving from topics of the configuration (or its pattern), from all of them when
// none is named. Messages that were received before, at most as many as the configuration lets wait
// here, are still handled. The subscriptions stay: what is published meanwhile waits at the
// brokers. A pause lasts over further calls of Run, until Resume. It may be called from any
// goroutine, at any time.
func (c *Consumer) Pause(topics ...string) {
	c.pauses.mu.Lock()
	defer c.pauses.mu.Unlock()
	if c.pauses.by == nil {
		c.pauses.by = make(map[string]chan struct{})
	}
	for _, name := range c.sourceNames(topics) {
		if c.pauses.by[name] == nil {
			c.pauses.by[name] = make(chan struct{})
		}
	}
}

// Resume ends what Pause began, for the topics named or for all.
func (c *Consumer) Resume(topics ...string) {
	c.pauses.mu.Lock()
	defer c.pauses.mu.Unlock()
	for _, name := range c.sourceNames(topics) {
		if resumed := c.pauses.by[name]; resumed != nil {
			close(resumed)
			delete(c.pauses.by, name)
		}
	}
}

// Paused reports whether the consumer does not receive from topic at present.
func (c *Consumer) Paused(topic string) bool { return c.pauses.of(fullTopicName(topic)) != nil }

// of returns a channel that is closed when the source is resumed, nil when it is not paused.
func (p *pauses) of(source string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by[source]
}

// sourceNames completes the names of topics; all sources when there are none.
func (c *Consumer) sourceNames(topics []string) []string {
	var names []string
	for _, topic := range topics {
		names = append(names, fullTopicName(topic))
	}
	if len(topics) == 0 {
		for _, src := range c.cfg.sources() {
			names = append(names, src.String())
		}
	}
	return names
}
