package redrive

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// source receives a subscription's unacknowledged messages, up to the ends that its
// partitions had at the beginning.
type source struct {
	cluster             *cluster.Cluster
	topic, subscription string
	raw                 pulsar.Consumer
	ch                  chan pulsar.ConsumerMessage
	gone                *clientquirks.CloseWatch
	idle                time.Duration
	subscribedAgain     bool

	ends map[string]record.Place // by partition's topic: the last message at the beginning
	high map[string]record.Place // the last one received
}

// openSource subscribes, trying until ctx ends while the brokers are unavailable.
func openSource(ctx context.Context, c *cluster.Cluster, topic, subscription string, idle time.Duration) (*source, error) {
	var pause backoff.Backoff
	for {
		s, err := cluster.CallWithTimeout(ctx, c, func() (*source, error) { return subscribe(c, topic, subscription) },
			func(s *source) { clientquirks.CloseReceiving(s.raw, s.ch) })
		switch {
		case err == nil:
			s.idle = idle
			return s, nil
		case clientquirks.CloseReason(err) == "busy":
			return nil, fmt.Errorf("%w: %w", ErrSubscriptionBusy, err)
		case clientquirks.CloseReason(err) == "topic_not_found":
			return nil, fmt.Errorf("%w: %w", record.ErrTopicNotFound, err)
		case clientquirks.Permanent(err), clientquirks.CloseReason(err) == "unauthorized":
			return nil, err
		}
		c.Log.Warn("cannot subscribe for a redrive, will keep trying", zap.String("topic", topic), zap.Error(err))
		if !backoff.Sleep(ctx, pause.Next()) {
			return nil, ctx.Err()
		}
	}
}

// subscribe subscribes once and asks for the ends. Exclusive, so that a partition's dead letters
// come in their order and as many may stay unacknowledged as there are.
func subscribe(c *cluster.Cluster, topic, subscription string) (*source, error) {
	topics, err := c.Consumers.TopicPartitions(topic)
	if err != nil {
		return nil, err
	}
	queue := max(batchBytes/(5<<20)/max(len(topics), 1), 1)
	s := &source{
		cluster: c, topic: topic, subscription: subscription, ch: make(chan pulsar.ConsumerMessage), gone: clientquirks.NewCloseWatch(),
		ends: make(map[string]record.Place), high: make(map[string]record.Place),
	}
	s.raw, err = c.Consumers.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionLatest,
		ReceiverQueueSize:           queue, MessageChannel: s.ch,
		AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
		Interceptors:      pulsar.ConsumerInterceptors{s.gone},
		Decryption:        clientquirks.ShowEncrypted(),
		BackOffPolicyFunc: clientquirks.NewBackoff,
		// Partitions that are added later are not read. A search for new partitions can close the
		// others.
		AutoDiscoveryPeriod: clientquirks.Never,
	})
	if err != nil {
		return nil, err
	}
	last, err := s.raw.GetLastMessageIDs()
	if err != nil {
		clientquirks.CloseReceiving(s.raw, s.ch)
		return nil, err
	}
	for _, id := range last {
		if id.EntryID() >= 0 { // the partition holds a message
			s.ends[id.Topic()] = record.PlaceOf(id)
		}
	}
	return s, nil
}

// next waits for the next message; nil when there is none any more.
func (s *source) next(ctx context.Context) (*pulsar.ConsumerMessage, error) {
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
		case <-s.gone.Closed:
			return nil, s.gone.Err()
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
func (s *source) subscribeAgain(ctx context.Context) error {
	s.subscribedAgain = true
	closing, cancel := context.WithTimeout(ctx, s.cluster.CallTimeout())
	defer cancel()
	s.close(closing)
	next, err := openSource(ctx, s.cluster, s.topic, s.subscription, s.idle)
	if err != nil {
		return err
	}
	s.raw, s.ch, s.gone = next.raw, next.ch, next.gone
	return nil
}

// close leaves the subscription, and waits for it until ctx ends at most.
func (s *source) close(ctx context.Context) {
	if s.raw == nil {
		return
	}
	raw, ch := s.raw, s.ch
	s.raw = nil
	clientquirks.Within(ctx, func() { clientquirks.CloseReceiving(raw, ch) })
}

// ready is the next message if one has been received already, else nil.
func (s *source) ready() *pulsar.ConsumerMessage {
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
func (s *source) fresh(m *pulsar.ConsumerMessage) bool {
	topic, at := m.Topic(), record.PlaceOf(m.ID())
	end, open := s.ends[topic]
	high, known := s.high[topic]
	beyond := end.Less(at) && (at.Ledger != end.Ledger || at.Entry != end.Entry)
	if open && (beyond || at.Ledger == end.Ledger && at.Entry == end.Entry && m.ID().BatchIdx() >= m.ID().BatchSize()-1) {
		delete(s.ends, topic)
	}
	switch {
	case known && !high.Less(at), !open, beyond:
		return false
	}
	s.high[topic] = at
	return true
}

// answers reports whether the brokers of all partitions answer in time.
func (s *source) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cluster.CallTimeout())
	defer cancel()
	var err error
	return clientquirks.Within(ctx, func() { _, err = s.raw.GetLastMessageIDs() }) && err == nil
}

// ack acknowledges dead letters whose copies are stored, and returns when the brokers have
// confirmed that: until then each of them could be received again, and go back again.
func (s *source) ack(ctx context.Context, ids []pulsar.MessageID) error {
	var pause backoff.Backoff
	for len(ids) > 0 {
		if s.tryAck(ctx, ids) {
			return nil
		}
		select {
		case <-s.gone.Closed:
			return s.gone.Err()
		default:
		}
		if !backoff.Sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
	}
	return nil
}

func (s *source) tryAck(ctx context.Context, ids []pulsar.MessageID) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cluster.CallTimeout())
	defer cancel()
	var err error
	return clientquirks.Within(ctx, func() { err = s.raw.AckIDList(ids) }) && err == nil
}
