package messaging

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"
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
	src        source
	raw        pulsar.Consumer
	ch         chan pulsar.ConsumerMessage
	partitions int
	queue      int // receive queue length per partition

	// What the underlying consumer holds. Counted where messages arrive, on the
	// connection's reader goroutine: those in its queue are invisible otherwise.
	held  atomic.Int64 // messages << heldShift | bytes
	limit int64
	alarm atomic.Bool   // more than limit was held
	heavy chan struct{} // the same, for a receiver that waits

	gone     chan struct{} // closed when the broker's side ended it
	goneOnce atomic.Bool
	cause    error // set before gone is closed
	ended    atomic.Bool
	wake     func() // after ended is set

	inactive func(topic string)
	late     *lateQueue // the run's

	unfinished int // guarded by the scheduler's lock

	// The receiving goroutine's own.
	open     int // batches received in part
	slab     slab
	replay   replay
	weights  weigher
	pressure pressure
	stays    time.Time // until when no longer queue is thought of
}

// over reports whether deliveries of the session are void.
func (s *session) over() bool { return s.ended.Load() }

// pressing reports whether the receiver has to look at the session.
func (s *session) pressing() bool { return s.ended.Load() || s.alarm.Load() }

// end makes the session's deliveries void.
func (s *session) end() {
	s.ended.Store(true)
	s.wake()
}

// The underlying client calls these as an interceptor.
var (
	_ pulsar.ConsumerInterceptor      = (*session)(nil)
	_ pulsar.ConsumerCloseInterceptor = (*session)(nil)
	_ pulsar.ConsumerEventListener    = (*session)(nil)
)

// BeforeConsume weighs a message that arrives. It runs on the connection's reader
// goroutine and must not block.
func (s *session) BeforeConsume(m pulsar.ConsumerMessage) {
	held := s.held.Add(1<<heldShift + int64(len(m.Payload())+deliveryOverhead))
	if held&(1<<heldShift-1) > s.limit && s.queue > 1 && s.alarm.CompareAndSwap(false, true) {
		select {
		case s.heavy <- struct{}{}:
		default:
		}
		go s.wake() // takes a lock
	}
}

// heldShift leaves a terabyte for the bytes. Both counts are in one word because
// two goroutines share it for every message.
const heldShift = 40

// holding is what the underlying consumer holds.
func (s *session) holding() (messages, bytes int64) {
	held := s.held.Load()
	return held >> heldShift, held & (1<<heldShift - 1)
}

// forget sets the counts to nothing held. The underlying client empties its queue
// without a word when it reconnects, so the counts can only be trusted upwards:
// they are corrected whenever the queue is known to be empty.
func (s *session) forget() { s.held.Store(0) }

// taken notes messages that were taken over from the underlying consumer. More may
// be taken than is counted after a forget.
func (s *session) taken(messages, bytes int64) {
	delta := messages<<heldShift + bytes
	if s.held.Add(-delta) < 0 {
		s.forget()
	}
}

func (s *session) OnAcknowledge(pulsar.Consumer, pulsar.MessageID)        {}
func (s *session) OnNegativeAcksSend(pulsar.Consumer, []pulsar.MessageID) {}

// OnConsumerClose hears that the underlying consumer gave up: since v0.20 it
// closes itself when a broker refuses it for good on reconnecting, as with
// ConsumerBusy, AuthorizationError or TopicNotFound.
func (s *session) OnConsumerClose(_ pulsar.Consumer, err error) {
	if err != nil && s.goneOnce.CompareAndSwap(false, true) {
		s.cause = err
		close(s.gone)
		go s.end()
	}
}

// BecameActive says that a failover subscription delivers a partition to us.
func (s *session) BecameActive(pulsar.Consumer, string, int32) {}

// BecameInactive says that it delivers to another consumer now, from the first
// message on that is not acknowledged: what we have not started is void.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	go s.inactive(topic)
}

// subscribe begins a session on src. It returns when subscribed, when that failed,
// or when the run stops. The underlying call has no context and can hang for good:
// when a connection breaks while the partitions of a topic are subscribing, those
// already subscribed wait for a reader that starts only when all are
// (consumer_impl.go, internalTopicSubscribeToPartitions). So it is given up after
// several operation timeouts, and a consumer that comes later is closed behind.
func (r *run) subscribe(src source) (*session, error) {
	type result struct {
		s   *session
		err error
	}
	ctx, cancel := context.WithTimeout(r.stop, subscribePatience*r.c.client.operationTimeout)
	defer cancel()
	made := make(chan result)
	go func() {
		s, err := r.newSession(src)
		select {
		case <-ctx.Done():
			if err == nil {
				s.raw.Close()
			}
		case made <- result{s, err}:
		}
	}()
	select {
	case <-ctx.Done():
		if r.stop.Err() != nil {
			return nil, context.Cause(r.stop)
		}
		return nil, errSubscribeHangs
	case res := <-made:
		return res.s, res.err
	}
}

// subscribePatience is how many operation timeouts subscribing may take: one each
// for the partitions, the lookups and the subscriptions, which go side by side.
const subscribePatience = 3

var errSubscribeHangs = errors.New("no answer in time")

// newSession subscribes with a receive queue of the length that the budget allows.
func (r *run) newSession(src source) (*session, error) {
	if src.pattern == "" {
		topics, err := r.c.client.consumers.TopicPartitions(src.topic)
		if err != nil {
			return nil, err
		}
		r.notePartitions(src, len(topics))
	}
	n, all := r.partitions(src)
	s := &session{
		src: src, partitions: n,
		queue: r.queueLength(src, all),
		limit: r.budget.limit(n, all),
		heavy: make(chan struct{}, 1), gone: make(chan struct{}),
		wake: r.sched.wake, late: r.late,
	}
	s.ch = make(chan pulsar.ConsumerMessage, channelLength(s.queue))
	s.inactive = func(topic string) {
		r.sched.drop(func(d *task) bool { return d.session == s && d.raw.Topic() == topic })
	}
	raw, err := r.c.client.consumers.Subscribe(r.rawOptions(s))
	if err != nil {
		return nil, err
	}
	s.raw = raw
	return s, nil
}

// queueLength is the receive queue of each partition of src, out of all.
func (r *run) queueLength(src source, all int) int {
	n := r.budget.queueLength(all, r.weightOf(src))
	if src.retry { // few, and not worth a share
		n = min(n, retryQueue)
	}
	return n
}

// retryQueue is the receive queue of a retry topic.
const retryQueue = 16

// countPartitions finds out how many partitions there are over all sources, so
// that the first to subscribe does not take it all. Failures show when subscribing.
func (r *run) countPartitions(sources []source) {
	if len(sources) == 1 {
		return // subscribing counts its own
	}
	var wg sync.WaitGroup
	for _, src := range sources {
		if src.pattern != "" || src.retry {
			continue
		}
		wg.Go(func() {
			if topics, err := r.c.client.consumers.TopicPartitions(src.topic); err == nil {
				r.notePartitions(src, len(topics))
			}
		})
	}
	within(r.stop, wg.Wait)
}

func (r *run) notePartitions(src source, n int) {
	r.mu.Lock()
	r.parts[src] = max(n, 1)
	r.mu.Unlock()
}

// partitions is how many src has, and how many there are over all sources but the
// retry topic.
func (r *run) partitions(src source) (n, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, n := range r.parts {
		if !s.retry {
			all += n
		}
	}
	return max(r.parts[src], 1), max(all, 1)
}

// weightOf is what a message of src is taken to weigh.
func (r *run) weightOf(src source) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.weights[src]; ok {
		return w.weight
	}
	return r.budget.assumed
}

// noteWeight sets what messages of src are taken to weigh. The queue does not grow
// again before growAfter.
func (r *run) noteWeight(src source, weight int64, growAfter time.Time) {
	r.mu.Lock()
	r.weights[src] = sourceWeight{weight, growAfter}
	r.mu.Unlock()
}

func (r *run) mayGrow(src source, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.After(r.weights[src].growAfter)
}

// sourceWeight is what messages of a source are taken to weigh.
type sourceWeight struct {
	weight    int64
	growAfter time.Time
}

// rawOptions are the underlying consumer's options. Its negative
// acknowledgements, retry and dead-letter routing are never used: see retry.go.
func (r *run) rawOptions(s *session) pulsar.ConsumerOptions {
	c := r.cfg
	o := pulsar.ConsumerOptions{
		Topic:                          s.src.topic,
		TopicsPattern:                  s.src.pattern,
		AutoDiscoveryPeriod:            c.DiscoverEvery,
		SubscriptionName:               c.Subscription,
		Type:                           c.Type.raw(),
		SubscriptionInitialPosition:    c.StartAt.raw(),
		SubscriptionMode:               pulsar.Durable,
		ReadCompacted:                  c.ReadCompacted,
		ReceiverQueueSize:              s.queue,
		MessageChannel:                 s.ch,
		Interceptors:                   pulsar.ConsumerInterceptors{s},
		EnableBatchIndexAcknowledgment: c.AckBatchIndex,
		AckGroupingOptions:             &pulsar.AckGroupingOptions{MaxSize: uint32(c.AckMessages), MaxTime: c.AckEvery},
		BackOffPolicyFunc:              newBackoff,
	}
	if c.Type == Failover {
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

// permanent reports whether subscribing can never succeed as configured.
func permanent(err error) bool {
	var e *pulsar.Error
	if errors.As(err, &e) {
		switch e.Result() {
		case pulsar.InvalidTopicName, pulsar.InvalidConfiguration:
			return true
		default:
		}
	}
	msg := err.Error()
	for _, s := range []string{
		"InvalidTopicName", "Invalid topic name", "IncompatibleSchema", "NotAllowedError",
		"Subscription is of different type",
	} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// closeReason is a short, bounded word for why a broker ended a session.
func closeReason(err error) string {
	for _, s := range []struct{ in, out string }{
		{"ConsumerBusy", "busy"}, {"AuthorizationError", "unauthorized"},
		{"TopicNotFound", "topic_not_found"}, {"TopicTerminated", "terminated"},
	} {
		if strings.Contains(err.Error(), s.in) {
			return s.out
		}
	}
	return "closed"
}

// replay recognises deliveries that the broker makes again while the first copy is
// still here unfinished: after a reconnect that the underlying client does by
// itself, a broker delivers from the first unacknowledged message on. Those are
// dropped. Handling them would be allowed (at least once), but would take a key
// back in its order for nothing.
type replay struct {
	last map[string]*placement // by topic (partition)
	cur  *placement            // of the latest message
}

type placement struct {
	topic        string
	latest, high place
	unfinished   map[place]struct{} // while replaying
}

// place is where a message stands in its topic.
type place struct {
	ledger, entry  int64
	batch, inTopic int32
}

func placeOf(m pulsar.Message) place {
	id := m.ID()
	return place{id.LedgerID(), id.EntryID(), id.BatchIdx(), id.PartitionIdx()}
}

func (p place) less(o place) bool {
	if p.ledger != o.ledger {
		return p.ledger < o.ledger
	}
	if p.entry != o.entry {
		return p.entry < o.entry
	}
	return p.batch < o.batch
}

// again reports whether m is here already and unfinished. unfinished lists what
// is; it is called when a topic steps back.
func (r *replay) again(m pulsar.Message, unfinished func() map[place]struct{}) bool {
	at, topic := placeOf(m), m.Topic()
	p := r.cur
	if p == nil || p.topic != topic {
		if r.last == nil {
			r.last = make(map[string]*placement)
		}
		if p = r.last[topic]; p == nil {
			p = &placement{topic: topic, high: place{ledger: -1}}
			r.last[topic] = p
		}
		r.cur = p
	}
	switch {
	case p.high.less(at):
		p.high, p.unfinished = at, nil
	case !p.latest.less(at): // a step back: the broker started over
		p.unfinished = unfinished()
	}
	p.latest = at
	_, here := p.unfinished[at]
	return here
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

func (a StartAt) raw() pulsar.SubscriptionInitialPosition {
	if a == StartLatest {
		return pulsar.SubscriptionPositionLatest
	}
	return pulsar.SubscriptionPositionEarliest
}

// logEnd says once why a session ended, when that was not asked for.
func (r *run) logEnd(s *session, reason string) {
	if s.cause != nil {
		r.log.Warn("subscription closed by the broker, subscribing again",
			zap.Stringer("source", s.src), zap.String("reason", reason), zap.Error(s.cause))
		return
	}
	r.log.Info("subscribing again", zap.Stringer("source", s.src), zap.String("reason", reason),
		zap.Int("receive_queue", s.queue))
}
