package consume

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/budget"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

// source is something to subscribe to: one topic, or one pattern.
type source struct {
	topic   string
	pattern string
	retry   bool // our own retry topic
}

func (s source) String() string {
	if s.pattern != "" {
		return s.pattern
	}
	return s.topic
}

// session is one life of an underlying consumer: from subscribing until it is
// closed, by us or by the broker. Deliveries know their session, because they can
// be acknowledged by it only, and are void (delivered again) once it is over.
type session struct {
	schedule.Group

	src            source
	name           string // of all its underlying consumers: brokers divide a topic's partitions by it
	raw            rawConsumer
	ch             chan pulsar.ConsumerMessage
	partitions     int
	queue          int  // receive queue length per partition
	failover       bool // the broker says which of several consumers has a partition
	singleConsumer bool // the subscription delivers a partition to one consumer at a time
	ordered        bool // order is kept
	log            *zap.Logger
	lines          throttle.Throttle

	// The content of the underlying consumer. Counted where messages arrive, on the
	// connection's reader goroutine: those in its queue are invisible otherwise.
	buffered  atomic.Int64 // messages << bufferedShift | bytes
	limit     int64
	overLimit chan struct{} // more than limit is buffered, for a receiver that waits
	idle      chan struct{} // nothing has arrived for a time, for the same

	receiving context.Context         // ends when the underlying consumers receive no more, with why
	cancel    context.CancelCauseFunc // ends receiving
	wake      func()                  // after the group has ended, or is over its limit

	arrivals   arrivalLog
	owned      ownership
	dropBefore func(topic string, epoch uint32) // drops what waits of earlier epochs

	perMessage  bool // messages of a batch are acknowledged one by one
	ackEvery    time.Duration
	ackMessages int
	ackFailed   prometheus.Counter

	unreadable           *prometheus.CounterVec // reason
	resubscribeForChunks time.Duration          // see Consumers
	chunksLost           atomic.Bool            // a message in chunks was given up

	acks struct {
		mu     sync.Mutex
		dirty  map[*partition]struct{} // have something to acknowledge
		timer  *time.Timer
		closed bool
		latest atomic.Int64 // when an entry was acknowledged by itself last, Unix nanoseconds; 0: none was
	}

	completions *completionQueue // the run's

	// The receiving goroutine's own.
	parts          map[string]*partition // by topic
	current        *partition            // of the latest message
	partialBatches int                   // batches received in part
	dropped        bool                  // take no more: the broker delivers it to the next session
	slab           record.Slab
	tasks          spareTasks
	weights        budget.Weigher
	starvation     budget.Starvation
	noGrowBefore   time.Time // until when the queue is not made longer
}

// failure is why the underlying consumers receive no more, nil while they do.
func (s *session) failure() error { return context.Cause(s.receiving) }

// end makes the session's deliveries void.
func (s *session) end() {
	s.Group.End()
	s.wake()
}

// partition returns the session's state of the partition that a message is from.
func (s *session) partition(topic string) *partition {
	if s.current != nil && s.current.topic == topic {
		return s.current
	}
	p := s.parts[topic]
	if p == nil {
		p = newPartition(s, topic)
		s.parts[topic] = p
	}
	s.current = p
	return p
}

// dropFromHere ends the session: from the present message on the broker delivers to the next.
func (s *session) dropFromHere(cause error) {
	s.dropped = true
	s.abort(cause)
}

// completeLast is called when nothing has arrived for a time.
func (s *session) completeLast() {
	if len(s.ch) > 0 {
		return
	}
	for _, p := range s.parts {
		p.completeLast()
	}
}

// The underlying client calls these as an interceptor.
var (
	_ pulsar.ConsumerInterceptor      = (*session)(nil)
	_ pulsar.ConsumerCloseInterceptor = (*session)(nil)
	_ pulsar.ConsumerEventListener    = (*session)(nil)
)

func (s *session) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (s *session) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// OnConsumerClose is called when the underlying consumer gave up: it closes itself when a broker
// refuses it for good on reconnecting, as with ConsumerBusy, AuthorizationError or TopicNotFound.
func (s *session) OnConsumerClose(_ pulsar.Consumer, err error) {
	if err != nil {
		s.abort(err)
	}
}

// abort ends the session because it misses messages, or gets none any more. The broker delivers
// unacknowledged messages to the next one. It does not block.
func (s *session) abort(cause error) {
	s.cancel(cause)
	go s.end()
}

// subscribe begins a session on src. It returns when subscribed, when that failed,
// or when the run stops. The underlying call has no context, and a pattern's can hang
// for good: when a connection breaks while the partitions of a topic are subscribing,
// those already subscribed wait for a reader that starts only when all are
// (consumer_impl.go, internalTopicSubscribeToPartitions). So it is given up after
// several operation timeouts, and a consumer that comes later is closed behind.
func (r *run) subscribe(src source) (*session, error) {
	consumers := new(partitionConsumers)
	s, err := cluster.CallWithTimeout(r.stop, r.c.parent.Cluster, func() (*session, error) { return r.newSession(src, consumers) }, r.giveUp)
	if err != nil {
		r.abandon(consumers)
	}
	return s, err
}

// newSession subscribes with a receive queue of the length that the budget allows, to a topic by
// consumers.
func (r *run) newSession(src source, consumers *partitionConsumers) (*session, error) {
	var topics []string
	if src.pattern == "" {
		var err error
		if topics, err = r.c.parent.Consumers.TopicPartitions(src.topic); err != nil {
			return nil, err
		}
		r.notePartitions(src, len(topics))
	}
	n, all := r.partitions(src)
	s := &session{
		src: src, partitions: n, name: strings.ToLower(rand.Text()),
		queue:          r.queueLength(src, all),
		limit:          r.budget.Limit(n, all),
		singleConsumer: !src.retry && (r.cfg.Type == Exclusive || r.cfg.Type == Failover), ordered: !src.retry && r.cfg.Order != OrderNone,
		failover:  !src.retry && r.cfg.Type == Failover,
		log:       r.log,
		overLimit: make(chan struct{}, 1), idle: make(chan struct{}, 1),
		wake: r.sched.Wake, completions: r.completions,
		perMessage: r.cfg.AckBatchIndex, ackEvery: r.cfg.AckEvery, ackMessages: r.cfg.AckMessages,
		ackFailed: r.metrics.ackFailed, unreadable: r.metrics.unreadable, resubscribeForChunks: r.c.parent.ResubscribeForChunks,
		parts: make(map[string]*partition),
		tasks: spareTasks{pool: &r.tasks},
	}
	s.receiving, s.cancel = context.WithCancelCause(context.Background())
	s.arrivals.connections.Current.Store(1)
	s.arrivals.connections.AckLanding = r.c.parent.AckLanding
	s.arrivals.channel = budget.ChannelLength(s.queue)
	s.arrivals.connections.Broken = func() { s.abort(errDropped) }
	s.ch = make(chan pulsar.ConsumerMessage, s.arrivals.channel)
	s.dropBefore = func(topic string, epoch uint32) {
		r.drop(func(d *task) bool {
			return d.session == s && d.entry.partition.topic == topic && d.entry.epoch < epoch && !d.copyStored()
		})
	}
	if s.singleConsumer {
		s.owned.f, s.owned.parent, s.owned.byBroker = r.c.onOwned, r.handlerCtx, s.failover
	}
	if err := r.createSubscription(src); err != nil {
		return nil, err
	}
	r.c.parent.Watched.Store(s.name, s)
	if err := r.subscribeTo(s, consumers, topics); err != nil {
		r.c.parent.Watched.Delete(s.name)
		return nil, err
	}
	r.created.Store(src, true)
	if s.singleConsumer && !s.failover {
		for i, topic := range topics {
			s.owned.gain(topic, i)
		}
	}
	return s, nil
}

// subscribeTo makes the underlying consumers.
func (r *run) subscribeTo(s *session, consumers *partitionConsumers, topics []string) (err error) {
	if s.src.pattern == "" {
		s.raw = consumers
		return r.subscribeAll(s, consumers, topics)
	}
	if s.raw, err = r.c.parent.Consumers.Subscribe(r.rawOptions(s)); err != nil {
		r.endOwnership(s)
	}
	return err
}

// createSubscription makes the subscription begin where the configuration says, if it does not
// exist yet. A run that was subscribed needs the admin API no more.
func (r *run) createSubscription(src source) error {
	if r.cfg.From == nil || src.retry {
		return nil
	}
	if _, subscribed := r.created.Load(src); subscribed {
		return nil
	}
	err := r.c.parent.api.Topic(src.topic).Subscription(r.cfg.Subscription).Create(r.stop, *r.cfg.From)
	if errors.Is(err, adminapi.ErrExists) || errors.Is(err, adminapi.ErrNotFound) {
		return nil // without a topic there is no message to begin at: subscribing may create it
	}
	return err
}

// rawOptions are the underlying consumer's options. Its negative acknowledgements, retry and
// dead-letter routing are never used: see verdict.go and package retry.
func (r *run) rawOptions(s *session) pulsar.ConsumerOptions {
	c := r.cfg
	o := pulsar.ConsumerOptions{
		Topic:                          s.src.topic,
		Name:                           s.name,
		ExpireTimeOfIncompleteChunk:    clientquirks.ChunksExpire,
		AutoDiscoveryPeriod:            c.DiscoverEvery,
		SubscriptionName:               c.Subscription,
		Type:                           c.Type.raw(),
		SubscriptionInitialPosition:    record.InitialPosition(c.StartAt),
		SubscriptionMode:               pulsar.Durable,
		ReadCompacted:                  c.ReadCompacted,
		ReceiverQueueSize:              s.queue,
		MessageChannel:                 s.ch,
		Interceptors:                   pulsar.ConsumerInterceptors{s},
		EnableBatchIndexAcknowledgment: c.AckBatchIndex,
		AckGroupingOptions:             &pulsar.AckGroupingOptions{MaxSize: uint32(c.AckMessages), MaxTime: c.AckEvery},
		BackOffPolicyFunc:              s.arrivals.connections.Policy,
		Decryption:                     clientquirks.ShowEncrypted(),
	}
	if s.src.pattern != "" {
		o.TopicsPattern = clientquirks.Anchored(s.src.pattern)
	}
	if s.singleConsumer { // gathered by us: see acks.go
		o.AckGroupingOptions = &pulsar.AckGroupingOptions{MaxSize: 1}
	}
	if s.failover {
		o.EventListener = s
	}
	if !c.Durable {
		o.SubscriptionMode = pulsar.NonDurable
	}
	if s.src.retry {
		o.Type, o.SubscriptionInitialPosition = pulsar.Shared, pulsar.SubscriptionPositionEarliest
	}
	if r.drain != nil && s.src.pattern != "" {
		// The underlying pattern consumer reads its map of topics without a lock
		// when it is asked for the last message ids: nothing may write it then.
		o.AutoDiscoveryPeriod = 1000 * time.Hour
	}
	return o
}

func (t SubscriptionType) raw() pulsar.SubscriptionType {
	switch t {
	case Exclusive:
		return pulsar.Exclusive
	case Failover:
		return pulsar.Failover
	case KeyShared:
		return pulsar.KeyShared
	default:
		return pulsar.Shared
	}
}

// logEnd logs why a session ended while the run continues.
func (r *run) logEnd(s *session, reason string) {
	if cause := s.failure(); cause != nil {
		r.log.Warn("subscription ended, subscribing again",
			zap.Stringer("source", s.src), zap.String("reason", reason), zap.Error(cause))
		return
	}
	r.log.Info("subscribing again", zap.Stringer("source", s.src), zap.String("reason", reason),
		zap.Int("receive_queue", s.queue))
}

// endReason is a short, bounded word for why a session failed.
func endReason(err error) string {
	switch {
	case errors.Is(err, errDropped):
		return "dropped"
	case errors.Is(err, errRewound):
		return "rewound"
	case errors.Is(err, errPartitions):
		return "partitions"
	case errors.Is(err, errChunks):
		return "chunks"
	}
	return clientquirks.CloseReason(err)
}
