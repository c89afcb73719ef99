package consume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

// rawConsumer has the methods of the underlying consumers that a session needs.
type rawConsumer interface {
	GetLastMessageIDs() ([]pulsar.TopicMessageID, error)
	Close()
}

// partitionConsumers are the underlying consumers of a topic: one for each partition. The
// underlying client can have one for all, which we do not use (pulsar-client-go v0.21.0
// consumer_impl.go, internalTopicSubscribeToPartitions):
//
//   - When the topic gains partitions and subscribing to one of them fails, it closes the consumers
//     of all partitions, without an error, and never makes them again.
//   - When a connection breaks while it subscribes, and a partition fails, it hangs for good.
//     Partitions that it subscribed by other connections stay subscribed, and receive nothing.
//
// It is safe for concurrent use.
type partitionConsumers struct {
	// subscribe makes the consumer of one partition.
	subscribe func(topic string) (pulsar.Consumer, error)

	making sync.WaitGroup

	mu      sync.Mutex
	session *session                   // where they deliver; nil before the first is to be made
	of      map[string]pulsar.Consumer // by partition's topic; nil while one is being made
	closed  bool
}

// begin is called once, before add.
func (c *partitionConsumers) begin(s *session, subscribe func(topic string) (pulsar.Consumer, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.subscribe = s, subscribe
}

// add subscribes to those of topics that have no consumer, side by side. It returns one of the
// errors; the partitions without one are subscribed.
func (c *partitionConsumers) add(topics []string) (err error) {
	var group errgroup.Group
	for _, topic := range c.reserve(topics) {
		group.Go(func() error { return c.make(topic) })
	}
	return group.Wait()
}

// reserve returns those of topics that have no consumer and for which no other caller makes one.
func (c *partitionConsumers) reserve(topics []string) (missing []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]pulsar.Consumer)
	}
	for _, topic := range topics {
		if _, has := c.of[topic]; !has && !c.closed {
			c.of[topic] = nil
			c.making.Add(1)
			missing = append(missing, topic)
		}
	}
	return missing
}

// make makes the consumer of a partition.
func (c *partitionConsumers) make(topic string) error {
	defer c.making.Done()
	raw, err := c.subscribe(topic)
	c.mu.Lock()
	closed := c.closed
	switch {
	case err != nil:
		delete(c.of, topic)
	case !closed:
		c.of[topic] = raw
	}
	c.mu.Unlock()
	if err == nil && closed {
		clientquirks.CloseReceiving(raw, c.session.ch)
	}
	return err
}

// all are the consumers.
func (c *partitionConsumers) all() (made []pulsar.Consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, raw := range c.of {
		if raw != nil {
			made = append(made, raw)
		}
	}
	return made
}

// GetLastMessageIDs asks for the end of each partition.
func (c *partitionConsumers) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) {
	all := c.all()
	found := make([][]pulsar.TopicMessageID, len(all))
	var group errgroup.Group
	group.SetLimit(cluster.ReaderAsks)
	for i, raw := range all {
		group.Go(func() (err error) {
			found[i], err = raw.GetLastMessageIDs()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var ids []pulsar.TopicMessageID
	for _, of := range found {
		ids = append(ids, of...)
	}
	return ids, nil
}

// Close closes the consumers, and those that are being made once they are.
func (c *partitionConsumers) Close() {
	c.refuse()
	madeConsumers(c.all()).Close()
	c.making.Wait()
}

// refuse makes no more consumers, and closes those that are being made once they are. It returns
// the session, nil when there is none yet.
func (c *partitionConsumers) refuse() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.session
}

// madeConsumers are the consumers that were made at some time.
type madeConsumers []pulsar.Consumer

// Close closes them side by side.
func (all madeConsumers) Close() {
	var closing sync.WaitGroup
	for _, raw := range all {
		closing.Go(raw.Close)
	}
	closing.Wait()
}

// subscribeAll subscribes to all partitions of s's topic. When that fails, abandon must follow.
func (r *run) subscribeAll(s *session, c *partitionConsumers, topics []string) error {
	c.begin(s, func(topic string) (pulsar.Consumer, error) {
		options := r.rawOptions(s)
		options.Topic, options.AutoDiscoveryPeriod = topic, clientquirks.Never
		// Of a partition that the topic has gained the queue is shorter than those of the others,
		// which may have all of the budget.
		_, all := r.partitions(s.src)
		options.ReceiverQueueSize = min(s.queue, r.queueLength(s.src, all))
		return r.c.parent.Consumers.Subscribe(options)
	})
	return c.add(topics)
}

// abandon ends the subscribed consumers of a session that does not begin: subscribing failed
// or took too long, or the run stops. A partition that has not answered is not waited for: the
// others have messages, which are another consumer's from now on.
func (r *run) abandon(c *partitionConsumers) {
	s := c.refuse()
	if s == nil {
		return
	}
	r.endOwnership(s)
	r.briefly(func(ctx context.Context) {
		clientquirks.Within(ctx, func() { clientquirks.CloseReceiving(madeConsumers(c.all()), s.ch) })
	})
}

// findPartitions looks for new partitions until ctx ends.
func (r *run) findPartitions(ctx context.Context, s *session) {
	if r.drain != nil { // the partitions at the beginning
		return
	}
	look := r.lookAtPattern(s)
	if consumers, ok := s.raw.(*partitionConsumers); ok {
		look = func(ctx context.Context) { r.subscribeNew(ctx, s, consumers) }
	}
	t := time.NewTicker(r.cfg.DiscoverEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			look(ctx)
		}
	}
}

// subscribeNew subscribes to the partitions that s's topic has gained.
func (r *run) subscribeNew(ctx context.Context, s *session, consumers *partitionConsumers) {
	before := len(consumers.all())
	_, err := cluster.CallWithTimeout(ctx, r.c.parent.Cluster, func() (none struct{}, err error) {
		topics, err := r.c.parent.Consumers.TopicPartitions(s.src.topic)
		if err == nil {
			r.notePartitions(s.src, max(len(topics), before))
			err = consumers.add(topics)
		}
		return none, err
	}, nil)
	if ctx.Err() != nil {
		return
	}
	if n := len(consumers.all()); n > before {
		r.log.Info("topic has more partitions", zap.Stringer("source", s.src), zap.Int("from", before), zap.Int("to", n))
	}
	if err != nil {
		if _, ok := s.lines.Allow(); ok {
			r.log.Warn("cannot look for new partitions, will keep trying", zap.Stringer("source", s.src), zap.Error(err))
		}
	}
}

// errPartitions ends the session of a pattern.
var errPartitions = errors.New("a topic has another number of partitions")

// lookAtPattern returns what ends the session when a topic that it has received from has another
// number of partitions. The underlying client finds these, too, and may have closed the consumers
// of the others: see partitionConsumers.
func (r *run) lookAtPattern(s *session) func(ctx context.Context) {
	known := make(map[string]int)
	return func(ctx context.Context) {
		for _, topic := range s.arrivals.topics() {
			partitions, err := cluster.CallWithTimeout(ctx, r.c.parent.Cluster, func() ([]string, error) {
				return r.c.parent.Consumers.TopicPartitions(topic)
			}, nil)
			if err != nil {
				continue
			}
			if was, seen := known[topic]; seen && was != len(partitions) {
				s.abort(errPartitions)
				return
			}
			known[topic] = len(partitions)
		}
	}
}
