package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/flush"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// Publisher publishes to one topic. [Client.Publisher] opens one. It is safe for concurrent use.
//
// A record is routed to a partition, waits for space there, and enters the partition's list of
// pending records. With the broker's receipt it leaves the list, and the caller gets the outcome.
type Publisher struct {
	parent  *Publishers
	topic   string
	profile Profile
	log     *zap.Logger
	metrics profileMetrics
	router  router
	flusher *flush.Flusher

	partitions atomic.Pointer[[]*partitionPublisher]
	grow       sync.Mutex // one change of partitions at a time

	background context.Context // ends when Close begins: discovery
	cancel     context.CancelFunc

	closeOnce sync.Once
	closeErr  error
	closing   atomic.Pointer[context.Context] // Close's context, for the partitions
	lost      atomic.Int64                    // records not acknowledged at close

	owned        context.Context // ends when ownership does
	endOwnership context.CancelCauseFunc

	connectErr atomic.Pointer[error] // the latest failure to create a producer
}

// discoverEvery is the interval at which a publisher looks for new partitions.
const discoverEvery = time.Minute

// Open is what the client's Publisher does.
func (c *Publishers) Open(ctx context.Context, topic string, profile Profile) (*Publisher, error) {
	if err := profile.Validate(); err != nil {
		return nil, fmt.Errorf("messaging: profile: %w", err)
	}
	if !record.ValidTopic(topic) {
		return nil, fmt.Errorf("%w: %q", record.ErrInvalidTopic, topic)
	}
	p := &Publisher{
		parent: c, topic: topic, profile: profile,
		log:     c.Log.Named("publisher").With(zap.String("profile", profile.Name)),
		metrics: c.metrics.of(profile.Name),
		router:  router{routing: profile.Routing},
		flusher: c.flushers.Of(flush.Config{Linger: profile.Linger, GroupCommit: profile.GroupCommit}, c.watcher.count),
	}
	p.background, p.cancel = context.WithCancel(context.Background())
	p.owned, p.endOwnership = context.WithCancelCause(context.Background())

	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, record.ErrClosed
	}
	c.open[p] = struct{}{}
	c.mu.Unlock()

	if err := p.open(ctx); err != nil {
		// Nothing was published, so nothing can be lost by closing at once.
		_ = p.Close(clientquirks.Canceled())
		return nil, fmt.Errorf("messaging: open publisher for %s: %w", topic, err)
	}
	go p.discover()
	return p, nil
}

// open finds the topic's partitions and waits for a producer on each, until ctx or the client ends.
func (p *Publisher) open(ctx context.Context) error {
	ctx, forget := clientquirks.EitherEnds(ctx, p.parent.Life)
	defer forget()
	var b backoff.Backoff
	for {
		topics, err := p.lookUpPartitions(ctx)
		if err == nil {
			p.addPartitions(topics)
			break
		}
		if final := cluster.OpeningFailure(err, p.profile.refusedWhileOwned()); final != nil {
			return final
		}
		if ctx.Err() == nil {
			p.noteConnectError(err)
		}
		if !backoff.Sleep(ctx, b.Next()) {
			return p.explain(context.Cause(ctx))
		}
	}
	partitions := p.all()
	if len(partitions) == 0 { // closed while the broker answered
		return record.ErrClosed
	}
	for _, pp := range partitions {
		select {
		case <-pp.ready:
			pp.mu.Lock()
			refusal := pp.refusal
			pp.mu.Unlock()
			if refusal != nil {
				return refusal
			}
		case <-ctx.Done():
			return p.explain(context.Cause(ctx))
		case <-p.background.Done():
			return record.ErrClosed
		}
	}
	return nil
}

// explain adds to a bare "deadline exceeded" why the cluster cannot be reached, or else the latest
// failure to connect.
func (p *Publisher) explain(err error) error {
	if cause := p.parent.Reach.Err(); cause != nil {
		return fmt.Errorf("%w (%w)", err, cause)
	}
	if cause := p.connectErr.Load(); cause != nil {
		return fmt.Errorf("%w (last failure: %w)", err, *cause)
	}
	return err
}

func (p *Publisher) noteConnectError(err error) { p.connectErr.Store(&err) }

func (p *Publisher) lookUpPartitions(ctx context.Context) ([]string, error) {
	return clientquirks.CallUntil(ctx, func() ([]string, error) { return p.parent.Producers.TopicPartitions(p.topic) }, nil)
}

// addPartitions starts a partition for each new topic, and divides the bounds anew.
func (p *Publisher) addPartitions(topics []string) {
	p.grow.Lock()
	defer p.grow.Unlock()
	partitions := slices.Clone(p.all())
	old := len(partitions)
	if len(topics) <= old || p.background.Err() != nil {
		return
	}
	for i := old; i < len(topics); i++ {
		pp := newPartitionPublisher(p, topics[i], i)
		pp.opening = old == 0
		if i > 0 && p.profile.owns() {
			// One after the other, so that two publishers cannot wait for each other.
			pp.after = partitions[i-1].ready
		}
		partitions = append(partitions, pp)
	}
	for _, pp := range partitions {
		pp.setShare(max(p.profile.MaxPendingRecords/len(partitions), 1), max(p.profile.MaxPendingBytes/int64(len(partitions)), 1))
	}
	p.partitions.Store(&partitions)
	for _, pp := range partitions[old:] {
		pp.start()
	}
	if old > 0 {
		p.log.Info("topic has more partitions", zap.String("topic", p.topic),
			zap.Int("from", old), zap.Int("to", len(partitions)))
	}
}

// all are the partitions, none before the topic has been looked up.
func (p *Publisher) all() []*partitionPublisher {
	if partitions := p.partitions.Load(); partitions != nil {
		return *partitions
	}
	return nil
}

// discover adds the partitions that the topic gains.
func (p *Publisher) discover() {
	t := time.NewTicker(discoverEvery)
	defer t.Stop()
	for {
		select {
		case <-p.background.Done():
			return
		case <-t.C:
			if topics, err := p.lookUpPartitions(p.background); err == nil {
				p.addPartitions(topics)
			}
		}
	}
}

// partitioned reports whether the topic has partitions of its own.
func (p *Publisher) partitioned() bool {
	partitions := p.all()
	return len(partitions) > 1 || partitions[0].topic != p.topic && partitions[0].topic == topicname.Partition(p.topic, 0)
}

// Owned returns a context that ends when the publisher no longer owns its topic: a partition's
// producer is lost, or Close gives the topic up. Its cause wraps [ErrProducerLost],
// [ErrTopicTerminated] or [ErrClosed]. The broker may let another publisher in before the context
// ends here. With [SharedOwnership] it ends with Close only.
func (p *Publisher) Owned() context.Context { return p.owned }

// Topic is the topic's name as it was given.
func (p *Publisher) Topic() string { return p.topic }

// Partitions is the present number of partitions, 1 for a topic without.
func (p *Publisher) Partitions() int { return len(p.all()) }

// Unhealthy returns why records are not being stored now, nil when they are: a partition has
// no producer, or records wait without an acknowledgement for five seconds, or for one second while
// the cluster cannot be connected to.
func (p *Publisher) Unhealthy() error {
	for _, pp := range p.all() {
		pp.mu.Lock()
		disconnected, stalled, refusal, age := pp.producer == nil, pp.stalled, pp.refusal, time.Since(pp.headSince)
		late := pp.list.Head() != nil && age > watchEvery
		pp.mu.Unlock()
		switch {
		case refusal != nil && !errors.Is(refusal, record.ErrClosed):
			return fmt.Errorf("%s: %w", pp.topic, refusal)
		case refusal != nil:
		case disconnected:
			return p.explain(fmt.Errorf("messaging: %s: no producer", pp.topic))
		case stalled, late && p.parent.Reach.Err() != nil:
			return p.explain(fmt.Errorf("messaging: %s: no acknowledgement for %s", pp.topic, age.Round(time.Second)))
		}
	}
	return nil
}

// Publish publishes rs and returns nil only when the broker has acknowledged all of them. Records
// of one partition keep their order, within rs and between calls that follow one another.
//
// An error says how many records failed and wraps the first reason. When ctx ends first, accepted
// records may still be stored, and the publisher continues reading them: do not reuse their
// payloads. With a ctx that has ended already nothing is published. Reasons are [ErrQueueFull],
// [ErrTooLarge], [ErrDeduplicated], [ErrBadPartition], [ErrDeliverAt], [ErrTopicTerminated],
// [ErrProducerLost], [ErrUnacknowledged], [ErrClosed], and ctx's error.
func (p *Publisher) Publish(ctx context.Context, rs ...*record.Record) error {
	if len(rs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("messaging: nothing published: %w", err)
	}
	b := &batchOutcome{complete: make(chan struct{})}
	b.left.Store(int64(len(rs)))
	// A run of records of one partition is flushed once, behind its last record.
	var touched *partitionPublisher
	for _, r := range rs {
		pp, err := p.publish(ctx, r, touched, b.done)
		if err != nil {
			b.done(record.MessageID{}, err)
			continue
		}
		touched = pp
	}
	if touched != nil {
		touched.requestFlush()
	}
	select {
	case <-b.complete:
	case <-ctx.Done():
		if b.left.Load() > 0 {
			return fmt.Errorf("messaging: %d of %d records not acknowledged in time: %w", b.left.Load(), len(rs), p.explain(ctx.Err()))
		}
	}
	return b.err(len(rs))
}

// PublishAsync publishes r and calls done with the outcome, exactly once, before Close returns. It
// waits for space in the queue until ctx ends; after that ctx has no effect. With a ctx that has
// ended already r is not published.
//
// done runs on the partition's goroutine, where further outcomes wait for it, or in the caller's
// when the record is not accepted. It must not publish to the same publisher in the blocking mode,
// nor call Publish, Flush or Close: these wait for done. The payload and the key may be used again
// after done, if the outcome is no error and not [MessageID.SentAgain].
func (p *Publisher) PublishAsync(ctx context.Context, r *record.Record, done func(record.MessageID, error)) {
	pp, err := p.publish(ctx, r, nil, done)
	if err != nil {
		done(record.MessageID{}, err)
		return
	}
	if pp != nil {
		pp.requestFlush()
	}
}

// publish routes, admits and sends r. It returns the partition that has to be flushed for r, nil
// for none. before is the partition of the last record: if r goes to another, that one is flushed
// first, because r may have to wait.
func (p *Publisher) publish(ctx context.Context, r *record.Record, before *partitionPublisher, done func(record.MessageID, error)) (*partitionPublisher, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !r.DeliverAt.IsZero() && !p.profile.unbatched() {
		return nil, record.ErrDeliverAt
	}
	partitions := p.all()
	i := p.router.route(r, len(partitions), func(i int) bool { return partitions[i].full() })
	if i < 0 {
		return nil, fmt.Errorf("%w: %d of %d", record.ErrBadPartition, r.Partition, len(partitions))
	}
	pp := partitions[i]
	if before != nil && before != pp {
		before.requestFlush()
	}
	e, raw, gathered, err := pp.admit(ctx, r, done)
	switch {
	case err != nil:
		return nil, err
	case gathered:
		return pp, nil
	case raw == nil:
		return nil, nil
	}
	pp.send(raw, e)
	pp.sends.Done()
	return pp, nil
}

// Flush returns when every record accepted before the call has its outcome, or ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	for _, pp := range p.all() {
		pp.flushAll()
	}
	for _, pp := range p.all() {
		if err := pp.wait(ctx); err != nil {
			return fmt.Errorf("messaging: flush: %w", err)
		}
	}
	return nil
}

// Close refuses new records with [ErrClosed], waits until ctx ends for accepted ones to be
// acknowledged, and closes the producers. Records that remain get [ErrUnacknowledged], and Close
// returns an [*UnacknowledgedError] that counts them. Closing again returns the same error.
func (p *Publisher) Close(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}

func (p *Publisher) close(ctx context.Context) error {
	p.cancel()
	defer func() {
		p.parent.mu.Lock()
		delete(p.parent.open, p)
		p.parent.mu.Unlock()
	}()
	// Behind this lock no partition is added any more: background has ended.
	p.grow.Lock()
	partitions := p.all()
	p.grow.Unlock()

	for _, pp := range partitions {
		pp.shut(record.ErrClosed)
	}
	for _, pp := range partitions {
		pp.flushAll()
	}
	for _, pp := range partitions {
		if pp.wait(ctx) != nil {
			break // abandon counts what is left
		}
	}
	p.endOwnership(record.ErrClosed)
	p.closing.Store(&ctx)
	for _, pp := range partitions {
		pp.stop()
	}
	for _, pp := range partitions {
		<-pp.ended
	}
	if n := p.lost.Load(); n > 0 {
		p.log.Error("closed with records not acknowledged", zap.String("topic", p.topic), zap.Int64("records", n))
		return &record.UnacknowledgedError{Count: int(n)}
	}
	return nil
}

// batchOutcome gathers the outcomes of one Publish call.
type batchOutcome struct {
	left     atomic.Int64
	failed   atomic.Int64
	first    atomic.Pointer[error]
	complete chan struct{}
}

func (b *batchOutcome) done(_ record.MessageID, err error) {
	if err != nil {
		b.failed.Add(1)
		b.first.CompareAndSwap(nil, &err)
	}
	if b.left.Add(-1) == 0 {
		close(b.complete)
	}
}

func (b *batchOutcome) err(total int) error {
	first := b.first.Load()
	switch {
	case first == nil:
		return nil
	case total == 1:
		return *first
	default:
		return fmt.Errorf("messaging: %d of %d records failed: %w", b.failed.Load(), total, *first)
	}
}
