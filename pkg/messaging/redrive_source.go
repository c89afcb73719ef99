package messaging

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// redriveSource receives what a subscription has not acknowledged, up to the ends that its
// partitions had at the beginning.
type redriveSource struct {
	cluster             *Cluster
	topic, subscription string
	raw                 pulsar.Consumer
	ch                  chan pulsar.ConsumerMessage
	gone                *closeWatch
	idle                time.Duration
	subscribedAgain     bool

	ends map[string]position // by partition's topic: the last message at the beginning
	high map[string]position // the last one received
}

// openRedriveSource subscribes, trying until ctx ends while the brokers are unavailable.
func openRedriveSource(ctx context.Context, c *Cluster, topic, subscription string, idle time.Duration) (*redriveSource, error) {
	var pause backoff.Backoff
	for {
		s, err := newRedriveSource(ctx, c, topic, subscription)
		switch {
		case err == nil:
			s.idle = idle
			return s, nil
		case closeReason(err) == "busy":
			return nil, fmt.Errorf("%w: %w", ErrSubscriptionBusy, err)
		case closeReason(err) == "topic_not_found":
			return nil, fmt.Errorf("%w: %w", ErrTopicNotFound, err)
		case permanent(err), closeReason(err) == "unauthorized":
			return nil, err
		}
		c.log.Warn("cannot subscribe for a redrive, will keep trying", zap.String("topic", topic), zap.Error(err))
		if !backoff.Sleep(ctx, pause.Next()) {
			return nil, ctx.Err()
		}
	}
}

// newRedriveSource subscribes once and asks for the ends. Exclusive, so that a partition's dead
// letters come in their order and as many may stay unacknowledged as there are.
func newRedriveSource(ctx context.Context, c *Cluster, topic, subscription string) (*redriveSource, error) {
	return callWithTimeout(ctx, c, func() (*redriveSource, error) { return subscribeForRedrive(c, topic, subscription) },
		func(s *redriveSource) { closeReceiving(s.raw, s.ch) })
}

func subscribeForRedrive(c *Cluster, topic, subscription string) (*redriveSource, error) {
	topics, err := c.consumers.TopicPartitions(topic)
	if err != nil {
		return nil, err
	}
	queue := max(redriveBytes/(5<<20)/max(len(topics), 1), 1)
	s := &redriveSource{
		cluster: c, topic: topic, subscription: subscription, ch: make(chan pulsar.ConsumerMessage), gone: newCloseWatch(),
		ends: make(map[string]position), high: make(map[string]position),
	}
	s.raw, err = c.consumers.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionLatest,
		ReceiverQueueSize:           queue, MessageChannel: s.ch,
		AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
		Interceptors:      pulsar.ConsumerInterceptors{s.gone},
		Decryption:        showEncrypted(),
		BackOffPolicyFunc: newBackoff,
		// What comes later is left. And what looks for new partitions can close all others.
		AutoDiscoveryPeriod: never,
	})
	if err != nil {
		return nil, err
	}
	last, err := s.raw.GetLastMessageIDs()
	if err != nil {
		closeReceiving(s.raw, s.ch)
		return nil, err
	}
	for _, id := range last {
		if id.EntryID() >= 0 { // the partition holds a message
			s.ends[id.Topic()] = positionOf(id)
		}
	}
	return s, nil
}

// next waits for the next message; nil when there is none any more.
func (s *redriveSource) next(ctx context.Context) (*pulsar.ConsumerMessage, error) {
	idle := time.NewTimer(s.idle)
	defer idle.Stop()
	answered := false // the brokers did, and nothing was received since
	for len(s.ends) > 0 {
		select {
		case m := <-s.ch:
			if s.fresh(&m) {
				return &m, nil
			}
			answered = false
			idle.Reset(s.idle)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.gone.closed:
			return nil, s.gone.err()
		case <-idle.C:
			if answered {
				return nil, nil
			}
			// Silence means that nothing is left only while the connection stands.
			answered = s.answers(ctx)
			// Only then: brokers that cannot be reached would have the old consumer still, and
			// refuse a second one.
			if answered && len(s.high) == 0 && !s.subscribedAgain {
				if err := s.subscribeAgain(ctx); err != nil {
					return nil, err
				}
			}
			idle.Reset(s.idle)
		}
	}
	return nil, nil
}

// subscribeAgain replaces the underlying consumer, which has received nothing. On a busy machine a
// broker was seen to send nothing to a consumer that subscribed right after another one of the
// subscription had closed, although a message was not acknowledged. The ends stay as they are.
func (s *redriveSource) subscribeAgain(ctx context.Context) error {
	s.subscribedAgain = true
	closing, cancel := context.WithTimeout(ctx, s.cluster.callTimeout())
	defer cancel()
	s.close(closing)
	next, err := openRedriveSource(ctx, s.cluster, s.topic, s.subscription, s.idle)
	if err != nil {
		return err
	}
	s.raw, s.ch, s.gone = next.raw, next.ch, next.gone
	return nil
}

// close leaves the subscription, and waits for it until ctx ends at most.
func (s *redriveSource) close(ctx context.Context) {
	if s.raw == nil {
		return
	}
	raw, ch := s.raw, s.ch
	s.raw = nil
	within(ctx, func() { closeReceiving(raw, ch) })
}

// ready is the next message if one has been received already, else nil.
func (s *redriveSource) ready() *pulsar.ConsumerMessage {
	for len(s.ends) > 0 {
		select {
		case m := <-s.ch:
			if s.fresh(&m) {
				return &m
			}
		default:
			return nil
		}
	}
	return nil
}

// fresh reports whether m was there at the beginning and is received for the first time. After a
// reconnect the broker begins with the first message that is not acknowledged: one that stayed,
// or one whose acknowledgement was lost with the connection.
func (s *redriveSource) fresh(m *pulsar.ConsumerMessage) bool {
	topic, at := m.Topic(), positionOf(m.ID())
	end, open := s.ends[topic]
	high, known := s.high[topic]
	beyond := end.less(at) && (at.ledger != end.ledger || at.entry != end.entry)
	if open && (beyond || at.ledger == end.ledger && at.entry == end.entry && m.ID().BatchIdx() >= m.ID().BatchSize()-1) {
		delete(s.ends, topic)
	}
	switch {
	case known && !high.less(at), !open, beyond:
		return false
	}
	s.high[topic] = at
	return true
}

// answers reports whether the brokers of all partitions answer in time.
func (s *redriveSource) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cluster.callTimeout())
	defer cancel()
	var err error
	return within(ctx, func() { _, err = s.raw.GetLastMessageIDs() }) && err == nil
}

// ack acknowledges dead letters whose copies are stored, and returns when the brokers have
// confirmed that: until then each of them could be received again, and go back again.
func (s *redriveSource) ack(ctx context.Context, ids []pulsar.MessageID) error {
	var pause backoff.Backoff
	for len(ids) > 0 {
		if s.tryAck(ctx, ids) {
			return nil
		}
		select {
		case <-s.gone.closed:
			return s.gone.err()
		default:
		}
		if !backoff.Sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
	}
	return nil
}

func (s *redriveSource) tryAck(ctx context.Context, ids []pulsar.MessageID) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cluster.callTimeout())
	defer cancel()
	var err error
	return within(ctx, func() { err = s.raw.AckIDList(ids) }) && err == nil
}
