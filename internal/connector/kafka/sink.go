package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Sink writes messages through one idempotent producer. Its methods are safe for concurrent use.
//
// The library keeps what lanes are promised: when it gives up a batch, it gives up everything behind it in the partition as well, and gives a sequence
// number to something else only once the broker cannot have stored the batch under it. What a lane hands over before it learns of that may be stored
// first; the lane sends it again behind what failed.
type Sink struct {
	cfg      SinkConfig
	log      *zap.Logger
	health   *health
	patience context.Context // ends when a stop must not wait any longer
	messages sync.Pool       // of *outgoing

	started  chan struct{} // closed when there is a client
	stopping chan struct{} // closed when Run's context has ended
	missing  chan string   // topics that do not exist and are to be created
	lost     chan struct{} // told of every failed connection

	// gate is held by all who hand messages over, and alone by whoever sends one by itself, or stops.
	gate    sync.RWMutex
	client  *kgo.Client    // nil when the sink has not started, or has stopped
	pending sync.WaitGroup // messages without an outcome

	suspect atomic.Int64 // until when, in Unix nanoseconds, messages are sent one by one; 0 before the first refusal
}

// outgoing is a message while it is being sent.
type outgoing struct {
	record    kgo.Record
	partition int32 // of the source
	alone     bool  // it has a batch of its own
	done      func(error)
	finished  func(*kgo.Record, error)
}

// NewSink makes a sink. It connects to nothing: see Run. Its error is that of Validate.
func NewSink(cfg SinkConfig, o Options) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := &Sink{
		cfg: cfg, log: o.Log, health: &health{report: o.Report}, patience: o.Patience,
		started: make(chan struct{}), stopping: make(chan struct{}), missing: make(chan string, 16), lost: make(chan struct{}, 1),
	}
	s.messages.New = func() any {
		m := new(outgoing)
		m.finished = func(_ *kgo.Record, err error) { s.finished(m, err) }
		return m
	}
	return s, nil
}

var errStopped = errors.New("the Kafka sink has stopped")

// PlaceName names the topic to in the hops of messages.
func (s *Sink) PlaceName(to string) string {
	if to == "" {
		to = s.cfg.Topic
	}
	return message.PlaceName(system, s.cfg.Cluster, to)
}

// Send hands m over, see lane.Sink. A message is refused that is too large, or whose topic, time or partition Kafka cannot take.
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	if to == "" {
		to = s.cfg.Topic
	}
	if err := s.check(to, m); err != nil {
		done(err)
		return
	}
	select {
	case <-s.started:
	case <-s.stopping:
		done(errStopped)
		return
	case <-ctx.Done():
		done(ctx.Err())
		return
	}
	o := s.outgoing(to, m, done)
	if size := sizeOf(&o.record); size > int64(s.cfg.MaxMessageBytes) {
		s.passOn(o, lane.Refuse(tooLarge, fmt.Errorf("the message has %d bytes, max_message_bytes is %d", size, int64(s.cfg.MaxMessageBytes))))
		return
	}
	if until := s.suspect.Load(); until > 0 && time.Now().UnixNano() < until {
		s.sendAlone(ctx, o)
		return
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	s.produce(o)
}

// produce is called with the gate held. The message's context is nobody's: once it is on the wire it has to be waited for.
func (s *Sink) produce(o *outgoing) {
	if s.client == nil {
		s.passOn(o, errStopped)
		return
	}
	s.pending.Add(1)
	s.client.Produce(context.Background(), &o.record, o.finished)
}

// sendAlone gives o a batch of its own: nothing else is on the way before its outcome.
func (s *Sink) sendAlone(ctx context.Context, o *outgoing) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if err := s.flush(ctx); err != nil {
		s.passOn(o, err)
		return
	}
	o.alone = true
	s.produce(o)
	_ = s.flush(ctx) // cut short, its outcome comes later
}

// flush waits until all that was handed over has its outcome, ctx ends, or the sink is stopped. It is called with the gate held.
func (s *Sink) flush(ctx context.Context) error {
	if s.client == nil {
		return errStopped
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return s.client.Flush(ctx)
}

// check refuses what would fail a whole batch, or never get as far as a broker.
func (s *Sink) check(to string, m *message.Message) error {
	if to == "" {
		return lane.Refuse(noTopic, errors.New("the route names no topic, and the sink has none"))
	}
	if err := checkTopic(to); err != nil {
		return lane.Refuse(invalidTopic, fmt.Errorf("topic %q: %w", to, err))
	}
	if s.cfg.Partition == partitionSource && m.From.Partition < 0 {
		return lane.Refuse(invalidPartition, errors.New("the message comes from no partition, and partition is source"))
	}
	return nil
}

func (s *Sink) outgoing(to string, m *message.Message, done func(error)) *outgoing {
	o, ok := s.messages.Get().(*outgoing)
	if !ok {
		panic("the pool of outgoing messages holds something else")
	}
	key, value, headers := m.Kafka()
	kept := o.record.Headers[:0]
	for i := range headers {
		kept = append(kept, kgo.RecordHeader{Key: headers[i].Name, Value: headers[i].Value})
	}
	o.record = kgo.Record{Topic: to, Key: key, Value: value, Headers: kept, Timestamp: timestamp(m.Time), Partition: m.From.Partition}
	o.partition, o.alone, o.done = m.From.Partition, false, done
	return o
}

// timestamp is the record's: the present for a time that a record cannot have, which a header of the record then holds, and for none.
func timestamp(t time.Time) time.Time {
	if ms := t.UnixMilli(); ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return time.Time{}
	}
	return t
}

// passOn gives o back and passes its outcome on.
func (s *Sink) passOn(o *outgoing, outcome error) {
	done, kept := o.done, o.record.Headers
	clear(kept)
	o.record, o.done = kgo.Record{}, nil
	if cap(kept) <= 64 {
		o.record.Headers = kept[:0]
	}
	s.messages.Put(o)
	done(outcome)
}

const (
	// aloneFor is how long messages are sent one by one after a batch was refused.
	aloneFor = 5 * time.Second
	// flushTimeout is how long the brokers' answers are waited for at the stop.
	flushTimeout = 10 * time.Second
)

// Run connects, and connects again for ever, until ctx ends. Then what was taken is flushed, for ten seconds at most, every done is called, and it returns
// nil. It is called once.
func (s *Sink) Run(ctx context.Context) error {
	context.AfterFunc(ctx, func() { close(s.stopping) })
	var pause backoff
	client, err := s.newClient()
	for err != nil { // a file that has become unreadable
		s.health.trouble(s.cfg.trouble(err))
		if !pause.wait(ctx) {
			return nil
		}
		client, err = s.newClient()
	}
	s.gate.Lock()
	s.client = client
	s.gate.Unlock()
	close(s.started)

	s.attend(ctx, client)

	s.gate.Lock()
	s.client = nil
	s.gate.Unlock()
	patience, cancel := context.WithTimeout(s.patience, flushTimeout)
	defer cancel()
	_ = client.Flush(patience) // what is left fails when the client is closed
	client.Close()
	s.pending.Wait()
	return nil
}

// attend watches the connection and creates missing topics until ctx ends.
func (s *Sink) attend(ctx context.Context, client *kgo.Client) {
	var pause backoff
	for {
		began := time.Now()
		if err := client.Ping(ctx); err == nil {
			s.health.well()
			if !s.untilLost(ctx, client) {
				return
			}
		} else if ctx.Err() == nil {
			s.health.trouble(s.cfg.trouble(err))
		}
		if time.Since(began) > time.Minute {
			pause.reset()
		}
		if !pause.wait(ctx) {
			return
		}
	}
}

// untilLost creates missing topics until a connection fails. It returns false when ctx ended.
func (s *Sink) untilLost(ctx context.Context, client *kgo.Client) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.lost:
			return true
		case topic := <-s.missing:
			if err := s.create(ctx, client, topic); err != nil {
				s.health.trouble(s.cfg.trouble(fmt.Errorf("cannot create topic %s: %w", topic, err)))
			}
		}
	}
}

// finished draws the consequences of what became of a message. The library calls it for one message at a time.
func (s *Sink) finished(o *outgoing, err error) {
	defer s.pending.Done()
	switch {
	case err == nil:
		if s.health.ill.Load() {
			s.health.well()
		}
	case errors.Is(err, kgo.ErrClientClosed):
		err = errStopped
	case s.cfg.Partition == partitionSource && o.record.Partition < 0:
		// The partitioner found no such partition. To look again takes a request, which must not hold up the outcomes of others.
		s.pending.Go(func() { s.passOn(o, s.outOfRange(o)) })
		return
	default:
		err = s.outcome(o, fmt.Errorf("topic %s: %w", o.record.Topic, err))
	}
	s.passOn(o, err)
}

// outcome tells the lane whether a failure is final, and the operator if it is not.
func (s *Sink) outcome(o *outgoing, err error) error {
	suspect, outcome := verdict(err, o.alone)
	if _, refused := lane.Refused(outcome); refused {
		return outcome
	}
	if suspect {
		if s.suspect.Swap(time.Now().Add(aloneFor).UnixNano()) < time.Now().UnixNano() {
			s.log.Warn("messages are sent one by one for a while, because a batch was refused", zap.Error(err))
		}
		return outcome
	}
	s.health.trouble(s.cfg.trouble(err))
	if s.cfg.MissingTopic == missingCreate && errors.Is(err, kerr.UnknownTopicOrPartition) {
		select {
		case s.missing <- o.record.Topic:
		default: // it is being created, or will fail again
		}
	}
	return outcome
}
