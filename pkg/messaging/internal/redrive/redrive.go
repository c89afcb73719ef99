package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// RedriveConfig says which dead letters go back, and where to.
type RedriveConfig struct {
	// Topic is the dead-letter topic: [Retry].DeadLetterTopic, or by default the consumed topic's
	// name with -<subscription>-DLQ.
	Topic string
	// Subscription is the one of Topic whose messages go back: see [Retry.DeadLetterSubscription],
	// by default the name of the consumer's own subscription.
	// It must have no consumer meanwhile. One that does not exist is created, at the end of Topic,
	// and nothing goes back.
	Subscription string
	// To is the topic where they go, by the hash of their keys. Empty: each to the topic and
	// partition that it came from.
	To string
	// Filter chooses what goes back; the rest stays on Subscription. It is called in the order of
	// each partition, from one goroutine. Nil: everything.
	Filter func(*record.DeadLetter) bool
	// Progress is called with the result so far after each batch of dead letters, from one
	// goroutine. Nil: it is not called.
	Progress func(RedriveResult)
	// Rate bounds how many go back in a second, on average. 0: no bound.
	Rate float64
	// Max bounds how many go back. 0: no bound.
	Max int
	// Discard acknowledges what is chosen, and publishes nothing: the dead letters are gone. To
	// does not count.
	Discard bool
	// DryRun only counts: nothing is published or acknowledged.
	DryRun bool
}

// RedriveResult counts messages of the dead-letter topic. Only Redriven are gone from it. In a dry
// run TooLarge and NoTopic are 0: only publishing shows them.
type RedriveResult struct {
	// Redriven went back: their copies are stored. With Discard they are gone. In a dry run they
	// would have been.
	Redriven int
	// Filtered were left by Filter.
	Filtered int
	// Truncated were left because they lack a part of their payload: see [PropertyTruncated]. With
	// Discard they are gone like others.
	Truncated int
	// Encrypted were left because the library has no key to read them.
	Encrypted int
	// TooLarge were left because the brokers do not accept them.
	TooLarge int
	// NoTopic were left because the topic that they came from, or its partition, does not exist,
	// and brokers do not create it: [RedriveConfig].To sends them elsewhere.
	NoTopic int
	// Foreign were left because they are no dead letters of this library, or came from the
	// dead-letter topic itself.
	Foreign int
}

// ErrSubscriptionBusy is returned by [Client.Redrive] when the subscription has a consumer. The
// admin API's is [ErrBusy].
var ErrSubscriptionBusy = errors.New("messaging: subscription has a consumer")

// Idle is how long partitions may deliver nothing, while the brokers answer, before the rest of
// them counts as acknowledged earlier.
const Idle = 2 * time.Second

// Redrive publishes dead letters through c. Tests set another idle than Idle.
func Redrive(ctx context.Context, c *publish.Publishers, cfg RedriveConfig, idle time.Duration) (RedriveResult, error) {
	if err := cfg.validate(); err != nil {
		return RedriveResult{}, fmt.Errorf("messaging: redrive: %w", err)
	}
	if err := c.Enter(); err != nil {
		return RedriveResult{}, err
	}
	defer c.Leave()
	ctx, end := clientquirks.EitherEnds(ctx, c.Life)
	defer end()
	v := newRedrive(c, cfg, idle)
	defer v.close()
	err := v.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, record.ErrClosed) {
		err = fmt.Errorf("messaging: redrive %s: %w", cfg.Topic, err)
	}
	n := v.result
	v.log.Info("dead letters redriven", zap.Bool("dry_run", cfg.DryRun), zap.Bool("discard", cfg.Discard),
		zap.Int("redriven", n.Redriven), zap.Int("filtered", n.Filtered), zap.Int("truncated", n.Truncated),
		zap.Int("encrypted", n.Encrypted), zap.Int("too_large", n.TooLarge), zap.Int("no_topic", n.NoTopic),
		zap.Int("foreign", n.Foreign), zap.Error(err))
	return v.result, err
}

func (cfg RedriveConfig) validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !record.ValidTopic(cfg.Topic) {
		fault("topic: must be a name or persistent://tenant/namespace/name, got %q", cfg.Topic)
	}
	if cfg.Subscription == "" {
		fault("subscription: must be set")
	}
	switch {
	case cfg.To == "":
	case !record.ValidTopic(cfg.To):
		fault("to: must be a name or persistent://tenant/namespace/name, got %q", cfg.To)
	case record.FullTopicName(cfg.To) == record.FullTopicName(cfg.Topic):
		fault("to: must not be the dead-letter topic, got %q", cfg.To)
	}
	if cfg.Rate < 0 {
		fault("rate: must be >= 0, got %g", cfg.Rate)
	}
	if cfg.Max < 0 {
		fault("max: must be >= 0, got %d", cfg.Max)
	}
	return errors.Join(errs...)
}

const (
	// batchLetters bounds how many dead letters are under way before they are acknowledged.
	batchLetters = 100
	// batchBytes bounds the bytes of those, and of what is received ahead with 5 MiB each.
	batchBytes = 64 << 20
	// openTopics bounds the publishers open at once.
	openTopics = 50
)

// redrive is one call of Redrive. All of it runs on the caller's goroutine. It takes a batch of
// dead letters, publishes them, waits until they are stored, and acknowledges them.
type redrive struct {
	from   *publish.Publishers
	cfg    RedriveConfig
	idle   time.Duration
	topic  string
	log    *zap.Logger
	limit  *rate.Limiter
	result RedriveResult

	source     *source
	publishers map[string]*publish.Publisher // by topic
	missing    map[string]bool               // topics that do not exist
}

func newRedrive(c *publish.Publishers, cfg RedriveConfig, idle time.Duration) *redrive {
	v := &redrive{
		from: c, cfg: cfg, idle: idle, topic: record.FullTopicName(cfg.Topic),
		log:        c.Log.Named("redrive").With(zap.String("topic", cfg.Topic)),
		limit:      rate.NewLimiter(rate.Inf, 1),
		publishers: make(map[string]*publish.Publisher), missing: make(map[string]bool),
	}
	if cfg.Rate > 0 {
		v.limit = rate.NewLimiter(rate.Limit(cfg.Rate), 1)
	}
	return v
}

func (v *redrive) run(ctx context.Context) (err error) {
	if v.source, err = openSource(ctx, v.from.Cluster, v.topic, v.cfg.Subscription, v.idle); err != nil {
		return err
	}
	for !v.full() {
		m, err := v.source.next(ctx)
		if err != nil || m == nil {
			return err
		}
		err = v.send(ctx, v.gather(m))
		if v.cfg.Progress != nil {
			v.cfg.Progress(v.result)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// full reports whether Max is reached.
func (v *redrive) full() bool { return v.cfg.Max > 0 && v.result.Redriven >= v.cfg.Max }

// letter is a dead letter on its way back.
type letter struct {
	id     pulsar.MessageID
	to     string
	record *record.Record
	copyID record.MessageID
	err    error
}

// gather takes m and what else has been received, as far as it is to go back.
func (v *redrive) gather(m *pulsar.ConsumerMessage) []*letter {
	most := batchLetters
	if v.cfg.Max > 0 {
		most = min(most, v.cfg.Max-v.result.Redriven)
	}
	if v.cfg.Rate > 0 { // what is sent is acknowledged within a second or so
		most = min(most, max(int(v.cfg.Rate), 1))
	}
	var batch []*letter
	var bytes int64
	for ; m != nil; m = v.source.ready() {
		if l := v.choose(m); l != nil {
			batch = append(batch, l)
			bytes += record.SizeOf(l.record)
		}
		if len(batch) == most || bytes >= batchBytes {
			break
		}
	}
	return batch
}

// choose makes the dead letter of m, nil when it stays.
func (v *redrive) choose(m *pulsar.ConsumerMessage) *letter {
	if m.GetEncryptionContext() != nil {
		v.result.Encrypted++
		return nil
	}
	var none record.Slab
	d := none.Delivery(m.Message)
	dead, ok := d.DeadLetter()
	to := topicname.WithoutPartition(dead.Topic)
	switch {
	case !ok || to == topicname.WithoutPartition(v.topic):
		v.result.Foreign++
		return nil
	case v.cfg.Filter != nil && !v.cfg.Filter(&dead):
		v.result.Filtered++
		return nil
	case dead.Truncated > 0 && !v.cfg.Discard:
		v.result.Truncated++
		return nil
	}
	l := &letter{id: m.ID(), to: to, record: &record.Record{
		Key: dead.Key, OrderingKey: dead.OrderingKey, Payload: dead.Payload,
		Properties: dead.Properties, EventTime: dead.EventTime, Partition: record.PartitionIndex(dead.Topic, 0),
	}}
	if v.cfg.To != "" {
		l.to, l.record.Partition = record.FullTopicName(v.cfg.To), 0
	}
	return l
}

// send publishes the dead letters and acknowledges those that are stored. The error is the first
// one that is about more than its dead letter.
func (v *redrive) send(ctx context.Context, batch []*letter) (err error) {
	if v.cfg.DryRun {
		v.result.Redriven += len(batch)
		return nil
	}
	if v.cfg.Discard {
		return v.discard(ctx, batch)
	}
	ending, cancel := v.outlast(ctx) // what was sent is acknowledged, also when ctx ends
	defer cancel()
	outcomes := make(chan *letter, len(batch))
	waiting := 0 // for an outcome
	send := func(p *publish.Publisher, l *letter) {
		waiting++
		p.PublishAsync(ctx, l.record, func(id record.MessageID, err error) {
			l.copyID, l.err = id, err
			outcomes <- l
		})
	}
	for _, l := range batch {
		var p *publish.Publisher
		if v.missing[l.to] {
			v.result.NoTopic++
			continue
		}
		if err = v.limit.Wait(ctx); err != nil { // before ctx ends when that would be too early
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
			break
		}
		p, err = v.publisher(ctx, l.to)
		if errors.Is(err, record.ErrTopicNotFound) && v.cfg.To == "" { // it keeps the others from nothing
			v.log.Warn("the origin topic of dead letters does not exist; they stay in the dead-letter topic",
				zap.String("to", l.to), zap.Error(err))
			v.missing[l.to], err = true, nil
			v.result.NoTopic++
			continue
		}
		if err != nil {
			break
		}
		if l.record.Partition >= p.Partitions() { // the topic was made again with fewer
			v.result.NoTopic++
			continue
		}
		send(p, l)
	}
	var stored []pulsar.MessageID
	for waiting > 0 {
		select {
		case l := <-outcomes:
			waiting--
			if l.err == nil && record.InTopic(l.copyID) != nil { // taken for a duplicate: it may not be stored
				var p *publish.Publisher
				if p, l.err = v.publisher(ctx, l.to); l.err == nil {
					send(p, l)
					continue
				}
			}
			switch {
			case l.err == nil:
				stored = append(stored, l.id)
			case errors.Is(l.err, record.ErrTooLarge):
				v.result.TooLarge++
			case err == nil:
				err = fmt.Errorf("publish to %s: %w", l.to, l.err)
			}
		case <-ending.Done():
			err, waiting = ending.Err(), 0
		}
	}
	v.result.Redriven += len(stored)
	return errors.Join(err, v.source.ack(ending, stored))
}

// discard acknowledges the dead letters.
func (v *redrive) discard(ctx context.Context, batch []*letter) error {
	ids := make([]pulsar.MessageID, 0, len(batch))
	for _, l := range batch {
		if err := v.limit.Wait(ctx); err != nil { // before ctx ends when that would be too early
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		ids = append(ids, l.id)
	}
	ending, cancel := v.outlast(ctx) // what is acknowledged is counted, also when ctx ends
	defer cancel()
	if err := v.source.ack(ending, ids); err != nil {
		return err
	}
	v.result.Redriven += len(ids)
	return nil
}

// outlast makes a context that ends several operation timeouts after ctx.
func (v *redrive) outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		time.AfterFunc(v.from.CallTimeout(), cancel)
	})
	return long, func() {
		unhook()
		cancel()
	}
}

// publisher opens a publisher of a topic, or returns the one that is open.
func (v *redrive) publisher(ctx context.Context, topic string) (*publish.Publisher, error) {
	if p := v.publishers[topic]; p != nil {
		return p, nil
	}
	if len(v.publishers) >= openTopics {
		if err := v.closePublishers(ctx); err != nil {
			return nil, err
		}
	}
	profile := publish.Business()
	profile.Name = "redrive"
	// Unbatched: Key_Shared subscriptions need it.
	profile.BatchRecords, profile.GroupCommit = 1, false
	if v.cfg.To == "" {
		profile.Routing = publish.RouteExplicit
	}
	var pause backoff.Backoff
	for {
		p, err := v.from.TryOpen(ctx, topic, profile)
		switch {
		case err == nil:
			v.publishers[topic] = p
			return p, nil
		case errors.Is(err, record.ErrTopicTerminated), errors.Is(err, record.ErrTopicNotFound), errors.Is(err, record.ErrClosed),
			clientquirks.Permanent(err), clientquirks.CloseReason(err) == "unauthorized":
			return nil, err
		}
		v.log.Warn("cannot open topic, will keep trying", zap.String("to", topic), zap.Error(err))
		if !backoff.Sleep(ctx, pause.Next()) {
			return nil, ctx.Err()
		}
	}
}

func (v *redrive) closePublishers(ctx context.Context) error {
	var errs []error
	for topic, p := range v.publishers {
		errs = append(errs, p.Close(ctx))
		delete(v.publishers, topic)
	}
	return errors.Join(errs...)
}

// close leaves the subscription. Nothing is under way any more, or the call has failed.
func (v *redrive) close() {
	ctx, cancel := context.WithTimeout(context.Background(), v.from.CallTimeout())
	defer cancel()
	if err := v.closePublishers(ctx); err != nil && !errors.Is(err, record.ErrUnacknowledged) {
		v.log.Warn("cannot close publishers", zap.Error(err))
	}
	if v.source != nil {
		v.source.close(ctx)
	}
}
