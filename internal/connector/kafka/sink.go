package kafka

import (
	"cmp"
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

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Reasons of refusals.
const (
	tooLarge         = "too_large"
	invalidTopic     = "invalid_topic"
	invalidTimestamp = "invalid_timestamp"
	invalidPartition = "invalid_partition"
	invalidRecord    = "invalid_record"
	noTopic          = "no_topic"
)

// Sink writes messages through one idempotent producer. Its methods are safe for concurrent use.
//
// The library keeps the order that pipelines rely on. When it fails a batch, it fails every later
// batch of the partition as well. It reuses a sequence number only once the broker cannot have
// stored the failed batch under it. Messages that a pipeline sends before it learns of the failure
// may be stored first; the pipeline sends them again behind the failed ones.
type Sink struct {
	cfg      SinkConfig
	log      *zap.Logger
	health   *connector.Health
	drainCtx context.Context // ends when a stop must not wait any longer
	messages sync.Pool       // of *outgoing

	started          chan struct{}   // closed when there is a client
	stopping         context.Context // ends when Run's context has ended
	stop             context.CancelFunc
	missing          chan string   // topics that do not exist and are to be created
	connectionFailed chan struct{} // holds one token after a connection has failed

	// sendLock is read-held while a message is passed to the client. It is write-held while a
	// message is sent alone, and while client changes.
	sendLock sync.RWMutex
	client   *kgo.Client    // nil when the sink has not started, or has stopped
	pending  sync.WaitGroup // messages without an outcome

	aloneUntil atomic.Int64 // until when, in Unix nanoseconds, messages are sent one by one; 0 before the first refused batch
}

// outgoing is a message while it is being sent.
type outgoing struct {
	record    kgo.Record
	partition int32 // of the source
	alone     bool  // its batch has no other message
	done      func(error)
	onResult  func(*kgo.Record, error)
}

// NewSink implements [connector.SinkConfig].
func (c SinkConfig) NewSink(o connector.Options) connector.Sink {
	o = o.WithDefaults()
	s := &Sink{
		cfg: c, log: o.Log, health: connector.NewHealth(o.Report), drainCtx: o.DrainContext,
		started: make(chan struct{}), missing: make(chan string, 16), connectionFailed: make(chan struct{}, 1),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.messages.New = func() any {
		m := new(outgoing)
		m.onResult = func(_ *kgo.Record, err error) { s.onResult(m, err) }
		return m
	}
	return s
}

// report reports the state of the sink: nil is healthy.
func (s *Sink) report(err error) { s.health.Set(connector.Connection, s.cfg.withBrokers(err)) }

var errStopped = errors.New("the Kafka sink has stopped")

// PlaceName implements [connector.Sink].
func (s *Sink) PlaceName(to string) string {
	return message.PlaceName(system, s.cfg.Cluster, cmp.Or(to, s.cfg.Topic))
}

// Send implements [pipeline.Sink]. It refuses a message that is too large, or whose topic, time or
// partition Kafka cannot take.
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	to = cmp.Or(to, s.cfg.Topic)
	if err := s.check(to, m); err != nil {
		done(err)
		return
	}
	select {
	case <-s.started:
	case <-s.stopping.Done():
		done(errStopped)
		return
	case <-ctx.Done():
		done(ctx.Err())
		return
	}
	o := s.outgoing(to, m, done)
	if size, most := sizeOf(&o.record), int64(s.cfg.MaxMessageBytes); size > most {
		s.complete(o, pipeline.Refuse(tooLarge, fmt.Errorf("the message has %d bytes, max_message_bytes is %d", size, most)))
		return
	}
	if until := s.aloneUntil.Load(); until > 0 && time.Now().UnixNano() < until {
		s.sendAlone(ctx, o)
		return
	}
	s.sendLock.RLock()
	defer s.sendLock.RUnlock()
	s.produce(o)
}

// produce passes o to the client. A sent record cannot be cancelled, so it has no context of the
// caller's. sendLock is held.
func (s *Sink) produce(o *outgoing) {
	if s.client == nil {
		s.complete(o, errStopped)
		return
	}
	s.pending.Add(1)
	s.client.Produce(context.Background(), &o.record, o.onResult)
}

// sendAlone sends o in a separate batch. It waits for the result, so that nothing else is in
// flight meanwhile, unless ctx ends first.
func (s *Sink) sendAlone(ctx context.Context, o *outgoing) {
	s.sendLock.Lock()
	defer s.sendLock.Unlock()
	if err := s.flush(ctx); err != nil {
		s.complete(o, err)
		return
	}
	o.alone = true
	s.produce(o)
	_ = s.flush(ctx) // when it fails, onResult is called later
}

// flush waits until every produced message has its result, ctx ends, or the sink stops. sendLock is
// held.
func (s *Sink) flush(ctx context.Context) error {
	if s.client == nil {
		return errStopped
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	return s.client.Flush(ctx)
}

// check refuses a message without a valid topic, or without the partition that partition source
// needs.
func (s *Sink) check(to string, m *message.Message) error {
	if to == "" {
		return pipeline.Refuse(noTopic, errors.New("neither the route (to) nor the sink (topic) names a topic"))
	}
	if err := checkName(to); err != nil {
		return pipeline.Refuse(invalidTopic, fmt.Errorf("topic %q: %w", to, err))
	}
	if s.cfg.Partition == partitionSource && m.From.Partition < 0 {
		return pipeline.Refuse(invalidPartition, errors.New("partition: source needs a source partition, and the message has none"))
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
	o.record = kgo.Record{
		Topic: to, Key: key, Value: value, Headers: kept, Timestamp: timestamp(m.Time), Partition: m.From.Partition,
	}
	o.partition, o.alone, o.done = m.From.Partition, false, done
	return o
}

// timestamp is the record's timestamp. The zero time lets the library use the present: for a message
// without a time, and for a time that a record cannot have, which a header then holds.
func timestamp(t time.Time) time.Time {
	if ms := t.UnixMilli(); ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return time.Time{}
	}
	return t
}

// complete returns o to the pool and calls its done with outcome.
func (s *Sink) complete(o *outgoing, outcome error) {
	done, kept := o.done, o.record.Headers
	clear(kept)
	o.record, o.done = kgo.Record{}, nil
	if cap(kept) <= 64 {
		o.record.Headers = kept[:0]
	}
	s.messages.Put(o)
	done(outcome)
}

// flushTimeout is how long a stop waits for the brokers' answers.
const flushTimeout = 10 * time.Second

// Run connects, and reconnects without end, until ctx ends. Then it flushes the messages that it
// has, for flushTimeout at most. When it returns nil, every done has been called. It is called once.
func (s *Sink) Run(ctx context.Context) error {
	context.AfterFunc(ctx, s.stop)
	pause := connector.Reconnect()
	client, err := s.newClient()
	for err != nil { // a file that has become unreadable
		s.report(err)
		if !pause.Wait(ctx) {
			return nil
		}
		client, err = s.newClient()
	}
	s.setClient(client)
	close(s.started)
	s.superviseConnection(ctx, client)
	s.setClient(nil)
	drain, cancel := context.WithTimeout(s.drainCtx, flushTimeout)
	defer cancel()
	_ = client.Flush(drain) // the other messages fail when the client is closed
	client.Close()
	s.pending.Wait()
	return nil
}

func (s *Sink) setClient(client *kgo.Client) {
	s.sendLock.Lock()
	defer s.sendLock.Unlock()
	s.client = client
}

// superviseConnection checks the connection and creates missing topics until ctx ends.
func (s *Sink) superviseConnection(ctx context.Context, client *kgo.Client) {
	pause := connector.Reconnect()
	for {
		began := time.Now()
		err := client.Ping(ctx)
		if ctx.Err() != nil {
			return
		}
		s.report(err)
		if err == nil {
			s.createTopics(ctx, client)
		}
		pause.Held(time.Since(began))
		if !pause.Wait(ctx) {
			return
		}
	}
}

// createTopics creates missing topics until a connection fails or ctx ends.
func (s *Sink) createTopics(ctx context.Context, client *kgo.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.connectionFailed:
			return
		case topic := <-s.missing:
			if err := s.cfg.create(ctx, client, topic, false); err != nil {
				s.report(fmt.Errorf("cannot create topic %s: %w", topic, err))
			} else {
				client.ForceMetadataRefresh()
			}
		}
	}
}

// onResult completes a message with the library's result. The library calls it for one message at a
// time.
func (s *Sink) onResult(o *outgoing, err error) {
	defer s.pending.Done()
	switch {
	case err == nil:
		if s.health.Unhealthy() {
			s.report(nil)
		}
	case errors.Is(err, kgo.ErrClientClosed):
		err = errStopped
	case s.cfg.Partition == partitionSource && o.record.Partition < 0:
		// The partitioner found no such partition. checkPartition sends a request, which must not
		// block the results of other messages.
		s.pending.Go(func() { s.complete(o, s.checkPartition(o)) })
		return
	default:
		err = s.classifyFailure(o, fmt.Errorf("topic %s: %w", o.record.Topic, err))
	}
	s.complete(o, err)
}

// classifyFailure returns the error for the pipeline: a refusal, if sending again would not help.
// Otherwise it reports the failure, creates a missing topic, or has messages sent one by one.
//
// Brokers accept or refuse whole batches: one invalid message fails the others of its batch, and the
// library does not say which one it was. So only a message that was sent alone is refused for it.
func (s *Sink) classifyFailure(o *outgoing, err error) error {
	var reason string
	switch {
	case errors.Is(err, kerr.InvalidTopicException):
		return pipeline.Refuse(invalidTopic, err)
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		reason = tooLarge
	case errors.Is(err, kerr.InvalidTimestamp):
		reason = invalidTimestamp
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.UnsupportedForMessageFormat), errors.Is(err, kerr.PolicyViolation):
		reason = invalidRecord
	default: // the connection, or the state of the brokers
		s.report(err)
		if s.cfg.MissingTopic == missingCreate && errors.Is(err, kerr.UnknownTopicOrPartition) {
			select {
			case s.missing <- o.record.Topic:
			default: // it is being created, or will fail again
			}
		}
		return err
	}
	if o.alone {
		return pipeline.Refuse(reason, err)
	}
	now := time.Now()
	if s.aloneUntil.Swap(now.Add(5*time.Second).UnixNano()) < now.UnixNano() {
		s.log.Warn("the brokers refused a batch; sending messages one by one for 5s", zap.Error(err))
	}
	return err
}
