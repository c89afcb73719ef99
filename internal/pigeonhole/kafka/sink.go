package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/message"
)

// Sink writes messages through one idempotent producer. Its methods are safe for concurrent use.
type Sink struct {
	cfg      SinkConfig
	log      *zap.Logger
	health   *health
	messages sync.Pool // of *outgoing

	mu       sync.RWMutex
	producer *producer     // nil while there is none
	replaced bool          // there has been one
	changed  chan struct{} // closed when there is one again
	stopped  chan struct{} // closed when Run has returned
}

// producer is one of the sink's producers, which follow one another.
type producer struct {
	input   chan<- *sarama.ProducerMessage
	closing chan struct{} // closed when it takes no more
	alone   bool          // it gives each message a request of its own
	cut     *cut
	broken  chan error  // tells what broke it, once
	missing chan string // topics that do not exist
	known   sync.Map    // topics that have stored something
}

// fail cuts the producer off from the brokers, before the outcome of the message that failed is passed on: what is behind it in the library's queues
// fails too, else it would be stored first, and come again behind it.
func (p *producer) fail(client sarama.Client, err error) {
	if p.cut.off(client) {
		p.broken <- err
	}
}

// cut takes a producer's connections away.
type cut struct{ done atomic.Bool }

// off reports whether it was the first.
func (c *cut) off(client sarama.Client) bool {
	if c.done.Swap(true) {
		return false
	}
	_ = client.Close() // what it reports is what is cut off
	return true
}

// backoff is the pause before a retry: none where no retry can do anything, as the library makes it for each message.
func (c *cut) backoff(retries, _ int) time.Duration {
	if c.done.Load() {
		return 0
	}
	return min(100*time.Millisecond<<min(max(retries-1, 0), 10), 2*time.Second)
}

// errSuspect breaks a producer that has to make room for one that sends each message alone.
var errSuspect = errors.New("a batch was refused")

// outgoing is a message while it is being sent.
type outgoing struct {
	msg        sarama.ProducerMessage
	key, value content
	done       func(error)
}

// content is bytes as the library wants them.
type content []byte

func (c *content) Encode() ([]byte, error) { return *c, nil }
func (c *content) Length() int             { return len(*c) }

// NewSink makes a sink. It connects to nothing: see Run. Its error is that of Validate.
func NewSink(cfg SinkConfig, o Options) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := &Sink{cfg: cfg, log: o.Log, health: &health{report: o.Report}, changed: make(chan struct{}), stopped: make(chan struct{})}
	s.messages.New = func() any { return new(outgoing) }
	return s, nil
}

var (
	errStopped = errors.New("the Kafka sink has stopped")
	// errReplaced is the outcome of a message that waited while one producer took the place of another: what its lane has sent before may have failed
	// meanwhile, and must come first.
	errReplaced = errors.New("the connection to Kafka was made anew")
)

// Send hands m over, see lane.Sink. A message is refused that is too large, or whose topic, time or partition Kafka cannot take.
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	if to == "" {
		to = s.cfg.Topic
	}
	if err := s.check(to, m); err != nil {
		done(err)
		return
	}
	o := s.outgoing(to, m, done)
	if size := o.msg.ByteSize(2); size > int(s.cfg.MaxMessageBytes) {
		s.recycle(o)
		done(lane.Refuse(tooLarge, fmt.Errorf("the message has %d bytes, max_message_bytes is %d", size, int64(s.cfg.MaxMessageBytes))))
		return
	}
	for {
		again, err := s.hand(ctx, o)
		if again {
			continue
		}
		if err != nil {
			s.recycle(o)
			done(err)
		}
		return
	}
}

// hand gives o to the producer, or waits for one. With again it must be called once more.
func (s *Sink) hand(ctx context.Context, o *outgoing) (again bool, err error) {
	s.mu.RLock()
	p, changed, first := s.producer, s.changed, !s.replaced
	if p != nil {
		// The lock is held so that the producer is not closed meanwhile: closing announces the end first.
		defer s.mu.RUnlock()
		select {
		case p.input <- &o.msg:
			return false, nil
		case <-p.closing:
			return false, errReplaced
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	s.mu.RUnlock()
	select {
	case <-changed:
		if first {
			return true, nil
		}
		return false, errReplaced
	case <-s.stopped:
		return false, errStopped
	case <-ctx.Done():
		return false, ctx.Err()
	}
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
		o = new(outgoing)
	}
	key, value, headers := m.Kafka()
	kept := o.msg.Headers[:0]
	for i := range headers {
		kept = append(kept, sarama.RecordHeader{Key: []byte(headers[i].Name), Value: headers[i].Value})
	}
	o.key, o.value, o.done = key, value, done
	o.msg = sarama.ProducerMessage{Topic: to, Headers: kept, Timestamp: timestamp(m.Time), Partition: m.From.Partition, Metadata: o}
	if key != nil {
		o.msg.Key = &o.key
	}
	if value != nil {
		o.msg.Value = &o.value
	}
	return o
}

// timestamp is the record's: the present for a time that a record cannot have, which a header of the record then holds, and for none.
func timestamp(t time.Time) time.Time {
	if ms := t.UnixMilli(); ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return time.Time{}
	}
	return t
}

func (s *Sink) recycle(o *outgoing) {
	kept := o.msg.Headers
	clear(kept)
	*o = outgoing{}
	if cap(kept) <= 64 {
		o.msg.Headers = kept[:0]
	}
	s.messages.Put(o)
}

const (
	// aloneFor is how long messages are sent one by one after a batch was refused.
	aloneFor = 5 * time.Second
	// flushTimeout is how long the broker's answers are waited for when a producer is closed.
	flushTimeout = 10 * time.Second
)

// Run connects, and connects again for ever, until ctx ends. Then what was taken is flushed, for ten seconds at most, every done is called, and it returns
// nil. It is called once.
func (s *Sink) Run(ctx context.Context) error {
	defer close(s.stopped)
	var pause backoff
	alone := false
	for {
		began := time.Now()
		next, err := s.produce(ctx, alone)
		alone = next
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pause.reset() // one producer takes the place of another
			continue
		}
		s.health.trouble(s.cfg.trouble(err))
		if time.Since(began) > time.Minute {
			pause.reset()
		}
		if !pause.wait(ctx) {
			return nil
		}
	}
}

// produce runs one producer until ctx ends or another must take its place, which alone or not is returned. All that was given to it has its outcome
// before it returns: the next one cannot overtake it.
func (s *Sink) produce(ctx context.Context, alone bool) (nextAlone bool, err error) {
	conf, err := s.cfg.settings(alone)
	if err != nil {
		return alone, err
	}
	c := new(cut)
	conf.Producer.Retry.BackoffFunc = c.backoff
	client, err := sarama.NewClient(s.cfg.Brokers, conf)
	if err != nil {
		return alone, err
	}
	defer func() { _ = client.Close() }() // nothing is in flight then
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		return alone, err
	}
	p := &producer{
		input: async.Input(), closing: make(chan struct{}), alone: alone, cut: c, broken: make(chan error, 1), missing: make(chan string, 16),
	}
	var outcomes sync.WaitGroup
	outcomes.Go(func() { s.stored(async.Successes(), p) })
	outcomes.Go(func() { s.failed(async.Errors(), client, p) })
	s.health.well()

	s.mu.Lock()
	s.producer = p
	close(s.changed)
	s.mu.Unlock()

	err = s.attend(ctx, client, p)

	close(p.closing)
	s.mu.Lock()
	s.producer, s.changed, s.replaced = nil, make(chan struct{}), true
	s.mu.Unlock()
	async.AsyncClose()
	// Without connections what is left fails at once instead of after all retries.
	patience := time.AfterFunc(flushTimeout, func() { c.off(client) })
	outcomes.Wait()
	patience.Stop()
	if errors.Is(err, errSuspect) {
		s.log.Warn("messages are sent one by one for a while", zap.Error(err))
		return true, nil
	}
	return false, err
}

// attend waits until p has done its part, and makes missing topics meanwhile.
func (s *Sink) attend(ctx context.Context, client sarama.Client, p *producer) error {
	var over <-chan time.Time
	if p.alone {
		timer := time.NewTimer(aloneFor)
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case err := <-p.broken:
			return err
		case topic := <-p.missing:
			if err := s.create(client, topic); err != nil {
				s.health.trouble(s.cfg.trouble(fmt.Errorf("cannot create topic %s: %w", topic, err)))
			}
		}
	}
}

func (s *Sink) create(client sarama.Client, topic string) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	err = admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: s.cfg.CreatePartitions, ReplicationFactor: s.cfg.CreateReplication}, false)
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return nil
	}
	return err
}

// stored passes on that messages are stored.
func (s *Sink) stored(successes <-chan *sarama.ProducerMessage, p *producer) {
	last := ""
	for msg := range successes {
		o, ok := msg.Metadata.(*outgoing)
		if !ok {
			continue
		}
		if msg.Topic != last {
			last = msg.Topic
			p.known.Store(last, true)
		}
		done := o.done
		s.recycle(o)
		done(nil)
		if s.health.ill.Load() {
			s.health.well()
		}
	}
}

// failed passes on that messages are not.
func (s *Sink) failed(errs <-chan *sarama.ProducerError, client sarama.Client, p *producer) {
	for failure := range errs {
		o, ok := failure.Msg.Metadata.(*outgoing)
		if !ok {
			continue
		}
		err := fmt.Errorf("topic %s: %w", failure.Msg.Topic, failure.Err)
		outcome := s.outcome(failure.Msg, err, client, p)
		o.done(outcome) // and o is left to the library, which may look at it still
	}
}

// outcome draws the consequences of a failure.
func (s *Sink) outcome(msg *sarama.ProducerMessage, err error, client sarama.Client, p *producer) error {
	if errors.Is(err, sarama.ErrInvalidPartition) {
		return s.outOfRange(client, msg)
	}
	suspect, outcome := verdict(err, p.alone)
	_, refused := lane.Refused(outcome)
	_, known := p.known.Load(msg.Topic)
	switch {
	case refused:
	case suspect:
		p.fail(client, fmt.Errorf("%w: %w", errSuspect, err))
	case ofTopic(err) && !known:
		// Nothing was stored there, and other topics have no part in it. An open breaker stands for the errors that opened it.
		if !errors.Is(err, breaker.ErrBreakerOpen) {
			s.health.trouble(s.cfg.trouble(err))
		}
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) && s.cfg.MissingTopic == missingCreate {
			select {
			case p.missing <- msg.Topic:
			default:
			}
		}
	default:
		p.fail(client, err)
	}
	return outcome
}

// outOfRange refuses a message whose partition the topic does not have, unless it has been added just now.
func (s *Sink) outOfRange(client sarama.Client, msg *sarama.ProducerMessage) error {
	_ = client.RefreshMetadata(msg.Topic) // what is known then decides
	partitions, err := client.Partitions(msg.Topic)
	if err != nil {
		return err
	}
	err = fmt.Errorf("topic %s has %d partitions, the message comes from partition %d", msg.Topic, len(partitions), msg.Partition)
	if int(msg.Partition) < len(partitions) {
		return err
	}
	return lane.Refuse(invalidPartition, err)
}
