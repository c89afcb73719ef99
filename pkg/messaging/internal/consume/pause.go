package consume

import (
	"sync"
	"sync/atomic"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// pauses are the sources from which a consumer receives no messages now.
type pauses struct {
	count atomic.Uint64 // calls of Pause

	mu sync.Mutex
	by map[string]chan struct{} // by source; closed by resume
}

// Pause stops receiving from topics: each is one of [ConsumerConfig].Topics, or Pattern itself.
// Without names it pauses all of them and the retry topic. Single topics of a pattern cannot be
// paused, and other names have no effect. With names the retry topic continues: name Retry.Topic,
// too, to pause further attempts.
//
// Messages that were taken over before are still handled, and those held for another attempt get
// it. The subscriptions stay, with their partitions. Messages that are published meanwhile wait at
// the brokers, and up to PrefetchMessages wait here, received and not handled. On a Shared or
// Key_Shared subscription no other consumer gets these; end Run to give them back.
//
// A pause lasts over further calls of Run, until Resume. Drain does not get messages of paused
// sources: it ends after DrainIdle. Pausing twice is the same as pausing once. Pause may be called
// from any goroutine, at any time.
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
	c.pauses.count.Add(1)
}

// Resume ends what Pause began, for the topics named, or for all and the retry topic. It may be
// called from any goroutine, at any time.
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
		names = append(names, record.FullTopicName(topic))
	}
	if len(topics) == 0 {
		for _, src := range c.cfg.sources() {
			names = append(names, src.String())
		}
	}
	return names
}
