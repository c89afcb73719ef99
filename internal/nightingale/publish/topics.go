// Package publish is the publishing stage: it sorts the series of a request by topic, opens the
// topics, publishes the messages, and waits for the acknowledgements.
//
// publication.go encodes and publishes a request, topics.go manages the topics, groups.go sorts
// series by topic, sink.go publishes to one topic, queued.go is for ack: queued, dedup.go
// recognises repeated requests, and byte_semaphore.go bounds the bytes that all topics hold.
package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TopicsConfig configures the topics that a topic with placeholders creates. Values are sanitised:
// letters, digits, "_", "-" and "." stay, other characters become "_". The value of a label that
// the series does not have is "none".
type TopicsConfig struct {
	// DefaultTenant replaces {tenant} for requests without the header X-Scope-OrgID. Default
	// public.
	DefaultTenant string `yaml:"default_tenant"`
	// MaxTopics is how many topics may be open at the same time. If all are open, a new topic
	// replaces an unused topic of the tenant that has opened the most, provided that its own tenant
	// has opened less than its share, the bound divided by the number of tenants. Otherwise its
	// series go to OverflowTopic. Without one they are refused with 400 and counted, and the other
	// series of the request are written. Default 100.
	MaxTopics int `yaml:"max_topics"`
	// OverflowTopic takes series beyond max_topics, series whose topic cannot be opened or is
	// terminated, and series whose topic is not open within half of request_timeout. It counts as
	// one of max_topics. Without it, series whose topic cannot be opened or is terminated are
	// refused with 400, and a request with a topic that is not open yet gets 503. Default: none.
	OverflowTopic string `yaml:"overflow_topic"`
	// IdleAfter is how long a topic stays open without records. Default 10m.
	IdleAfter time.Duration `yaml:"idle_after"`
}

// DefaultTopics returns the defaults.
func DefaultTopics() TopicsConfig {
	return TopicsConfig{DefaultTenant: "public", MaxTopics: 100, IdleAfter: 10 * time.Minute}
}

// Validate returns every fault.
func (c TopicsConfig) Validate() error {
	var errs []error
	if CheckTenant(c.DefaultTenant) != nil {
		errs = append(errs, config.Fault("default_tenant", "must be letters, digits, '_', '-' or '.', got %q", c.DefaultTenant))
	}
	errs = append(errs, config.CheckPositive("max_topics", c.MaxTopics))
	errs = append(errs, config.CheckAtLeast("idle_after", c.IdleAfter, time.Second))
	if c.OverflowTopic != "" {
		if t, err := ParseTemplate(c.OverflowTopic); err != nil {
			errs = append(errs, config.Fault("overflow_topic", "%s", err))
		} else if !t.static() {
			errs = append(errs, config.Fault("overflow_topic", "must not have placeholders, got %q", c.OverflowTopic))
		}
	}
	return errors.Join(errs...)
}

// Config is the configuration of the publishing stage.
type Config struct {
	Topic          string // a template
	Topics         TopicsConfig
	Ack            string // AckBroker or AckQueued
	RequestTimeout time.Duration
	// PendingBytes and PendingRecords bound the records that are published and not acknowledged
	// yet.
	PendingBytes   int64
	PendingRecords int
}

// Topics holds a sink for each topic of a template; a template without placeholders has one topic.
// The first record of a topic makes it open in the background. Idle topics are closed. All topics
// together have the bound of one publisher.
//
// The topic of a template without placeholders, and the overflow topic, are opened immediately and
// stay open.
type Topics struct {
	log         *zap.Logger
	metrics     *Metrics
	cfg         TopicsConfig
	Template    Template
	why         func() error // returns why connecting to Pulsar fails, nil if unknown; may be nil
	open        func(ctx context.Context, topic string) (Publisher, error)
	reach       func(ctx context.Context) error // see ReachFirst; may be nil
	unknown     atomic.Bool                     // Pulsar has not answered yet
	bytes       *byteSemaphore
	least       int64 // how many bytes a record takes of it at least
	ack         ackMode
	openTimeout time.Duration // how long requests wait for a topic to open; the rest of their time is for the acknowledgement

	divert func(ctx context.Context, topic string, records []messaging.Record) (free bool, err error) // see Divert; may be nil
	failed chan error                                                                                 // gets the error of a pinned topic that cannot be opened, or takes no records any more

	background   context.Context // context of the sinks
	cancel       context.CancelFunc
	closeContext context.Context // context for closing idle topics
	cancelClose  context.CancelFunc

	mu      sync.Mutex
	known   map[string]*topic
	shares  *admission.Shares // of known, by the tenant that has opened a topic
	closing map[string]*topic // topics that are being flushed and closed
}

// topic is one topic with its sink.
type topic struct {
	name   string
	tenant string // that has opened it
	sink   *sink
	until  time.Time // until when requests wait for the opening
	stop   context.CancelFunc
	ended  chan struct{} // the sink's run has returned
	closed chan struct{} // the publisher is closed
	fault  error         // why it takes no records; valid once ended is closed

	pinned bool // the configuration names it in full: it stays open

	// Guarded by Topics.mu.
	users int
	used  time.Time
}

// New returns the topics of a valid configuration. why returns why connecting to Pulsar fails; it
// may be nil. open opens a publisher.
func New(log *zap.Logger, cfg Config, m *Metrics, why func() error, open func(context.Context, string) (Publisher, error)) *Topics {
	parsed, err := ParseTemplate(cfg.Topic)
	if err != nil {
		panic("nightingale: " + err.Error()) // Validate has checked it
	}
	t := &Topics{
		log: log.Named("topics"), metrics: m, cfg: cfg.Topics, Template: parsed, why: why, open: open, ack: newAckMode(cfg, log, m), openTimeout: cfg.RequestTimeout / 2,
		bytes:  newByteSemaphore(cfg.PendingBytes),
		least:  max(cfg.PendingBytes/int64(cfg.PendingRecords), 1),
		failed: make(chan error, 1),
		known:  map[string]*topic{}, closing: map[string]*topic{}, shares: admission.NewShares(cfg.Topics.MaxTopics),
	}
	t.background, t.cancel = context.WithCancel(context.Background())
	t.closeContext, t.cancelClose = context.WithCancel(context.Background())
	if t.Template.static() {
		t.pin(cfg.Topic)
	} else if t.cfg.OverflowTopic != "" {
		t.pin(t.cfg.OverflowTopic)
	}
	return t
}

// pin opens a topic that stays open. No request waits for it: the service is not ready without it.
func (t *Topics) pin(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin(&topic{name: name, pinned: true, users: 1}, nil)
}

// Run closes idle topics until ctx ends. It fails if a pinned topic cannot be opened, or takes no
// records any more.
func (t *Topics) Run(ctx context.Context) error {
	defer t.cancel()
	var reaching sync.WaitGroup
	defer reaching.Wait()
	if t.reach != nil {
		reaching.Go(func() { t.unknown.Store(t.reach(ctx) != nil) })
	}
	tick := time.NewTicker(max(t.cfg.IdleAfter/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-t.failed:
			return err
		case now := <-tick.C:
			t.Sweep(now)
		}
	}
}

// acquire returns the topic of that name for use until release, or nil if there would be too many
// topics. replace says whether another topic may be closed for it. It copies name.
func (t *Topics) acquire(tenant string, name []byte, replace bool) *topic {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.known[string(name)]
	if e == nil {
		// One place is always reserved for the overflow topic.
		others := len(t.known) + len(t.closing)
		limit := t.cfg.MaxTopics
		if o := t.cfg.OverflowTopic; o != "" && t.known[o] == nil && string(name) != o {
			limit--
		}
		before := t.closing[string(name)]
		if before != nil {
			others-- // the new one takes its place
		}
		full := others >= limit && string(name) != t.cfg.OverflowTopic
		if t.background.Err() != nil || full && !(replace && t.evictUnused(tenant)) {
			return nil
		}
		e = &topic{name: string(name), tenant: tenant, until: time.Now().Add(t.openTimeout)}
		t.begin(e, before)
	}
	e.users++
	return e
}

// begin opens a topic in the background, after its predecessor of the same name is closed. The
// caller holds t.mu.
func (t *Topics) begin(e *topic, before *topic) {
	e.ended, e.closed = make(chan struct{}), make(chan struct{})
	e.sink = newSink(t.log, e.name, t.why, func(ctx context.Context) (Publisher, error) {
		if before != nil { // otherwise newer records could overtake those that it still holds
			select {
			case <-before.closed:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		p, err := t.open(ctx, e.name)
		if err != nil || t.Template.static() { // a single publisher has its own bounds
			return p, err
		}
		return &boundedPublisher{Publisher: p, share: &byteShare{semaphore: t.bytes}, least: t.least}, nil
	})
	e.sink.ack = t.ack
	var ctx context.Context
	ctx, e.stop = context.WithCancel(t.background)
	t.known[e.name] = e
	if !e.pinned {
		t.shares.Add(e.tenant, 1)
	}
	t.metrics.open.Set(float64(len(t.known)))
	go func() {
		defer close(e.ended)
		err := e.sink.run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.sink.suspended.Begin(err)
		if e.pinned {
			t.failed <- fmt.Errorf("%s: %w", e.name, err)
			return
		}
		// Senders choose the name: a topic that takes no records must not stop the service.
		e.fault = err
		t.log.Error("a topic accepts no records", zap.String("topic", e.name), zap.Error(err))
	}()
}

func (t *Topics) release(e *topic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
	e.used = time.Now()
}

// Sweep closes idle topics. It also removes topics that take no records, so that the next series of
// such a topic makes it open again.
func (t *Topics) Sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.known {
		if t.unused(e) && (e.hasEnded() || now.Sub(e.used) >= t.cfg.IdleAfter) {
			t.shut(e)
		}
	}
}

// unused reports whether a topic may be closed now. The caller holds t.mu.
func (t *Topics) unused(e *topic) bool {
	if e.users > 0 || t.closing[e.name] != nil {
		return false // in the second case its successor would have to wait for two others
	}
	// An open topic that is unavailable holds records that are not acknowledged.
	return e.hasEnded() || e.sink.opened.Load() == nil || e.sink.unavailable() == nil
}

// hasEnded reports whether the topic takes no records any more.
func (e *topic) hasEnded() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// shut removes a topic, and closes it in the background. The caller holds t.mu.
func (t *Topics) shut(e *topic) {
	delete(t.known, e.name)
	t.shares.Add(e.tenant, -1)
	t.closing[e.name] = e
	t.metrics.open.Set(float64(len(t.known)))
	go t.retire(e)
}

// evictUnused closes an unused topic of the tenant with the most topics for a new one of the given
// tenant. It reports whether it closes one. Until that is done there is one topic more than
// allowed, so at most a tenth of max_topics may be closing. The caller holds t.mu.
func (t *Topics) evictUnused(tenant string) bool {
	from := t.shares.EvictFrom(tenant)
	if from == tenant || len(t.closing) > t.cfg.MaxTopics/10 {
		return false
	}
	var oldest *topic
	for _, e := range t.known {
		if e.tenant == from && t.unused(e) && (oldest == nil || e.used.Before(oldest.used)) {
			oldest = e
		}
	}
	if oldest != nil {
		t.shut(oldest)
	}
	return oldest != nil
}

// retire closes an unused topic. It waits as long as that takes, because a successor must not
// overtake it.
func (t *Topics) retire(e *topic) {
	e.stop()
	<-e.ended
	if err := e.sink.close(t.closeContext); err != nil {
		t.log.Error("cannot close an idle topic", zap.String("topic", e.name), zap.Error(err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.closing, e.name)
	close(e.closed)
}

// ReachFirst makes the readiness check fail until reach, which waits for an answer of Pulsar, has
// returned nil. Callers call it before Run. It is needed if senders name all topics: then no topic
// is opened before the first series, and the service would be ready with a wrong address or an
// unreachable cluster. With a pinned topic, opening it has the same effect, and ReachFirst does
// nothing.
func (t *Topics) ReachFirst(reach func(ctx context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) == 0 {
		t.reach = reach
		t.unknown.Store(true)
	}
}

var errNotReached = errors.New("no answer of Pulsar yet")

// Check is the readiness check. It fails if all topics are unavailable, not counting topics that
// take no records: senders choose the topics, and a bad choice must not make the service unready.
func (t *Topics) Check(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unavailable error
	for _, e := range t.known {
		if e.refused() != nil {
			continue
		}
		if unavailable = e.sink.unavailable(); unavailable == nil {
			return nil
		}
	}
	if unavailable == nil && t.unknown.Load() {
		return refusal.WithCause(errNotReached, t.why)
	}
	return unavailable
}

// Close flushes and closes all publishers concurrently.
func (t *Topics) Close(ctx context.Context) error {
	t.cancel()
	defer t.cancelClose()
	defer context.AfterFunc(ctx, t.cancelClose)()
	t.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(t.known)), slices.Collect(maps.Values(t.closing)))
	t.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() {
			<-e.ended
			errs[i] = e.sink.close(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// refused returns why the topic takes no records: it cannot be opened, or was terminated. It
// returns nil if the topic may take records.
func (e *topic) refused() error {
	if e.hasEnded() {
		return e.fault
	}
	return nil
}

// open reports whether the topic is open.
func (e *topic) open() bool {
	select {
	case <-e.sink.ready:
		return true
	default:
		return false
	}
}

// await waits until the topic is open, but no longer than e.until. All requests share this
// deadline, so a topic that does not open delays each of them by at most openTimeout.
func (t *Topics) await(ctx context.Context, e *topic) error {
	if e.open() {
		return nil
	}
	timer := time.NewTimer(time.Until(e.until))
	defer timer.Stop()
	select {
	case <-e.sink.ready:
		return nil
	case <-e.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return refusal.Unavailable("topic_unavailable", refusal.RetryUnavailable, "Pulsar is unavailable: %s: %v", e.name, e.sink.unavailable())
}

// boundedPublisher is a publisher that shares the bounds of pending bytes and records with others.
type boundedPublisher struct {
	Publisher
	share *byteShare
	least int64
}

// PublishAsync waits for free bytes, as the publisher itself does with Block.
func (p *boundedPublisher) PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	const overhead = 64
	size := min(max(int64(len(r.Payload)+len(r.Key)+overhead), p.least), p.share.semaphore.limit)
	if err := p.share.acquire(ctx, size); err != nil {
		done(messaging.MessageID{}, err)
		return
	}
	p.Publisher.PublishAsync(ctx, r, func(id messaging.MessageID, err error) {
		p.share.release(size)
		done(id, err)
	})
}

// Partitions returns the number of the topic's partitions.
func (p *boundedPublisher) Partitions() int { return partitionsOf(p.Publisher) }

// partitionsOf returns the number of a publisher's partitions, 1 if the publisher does not tell it.
func partitionsOf(p Publisher) int {
	if counter, ok := p.(interface{ Partitions() int }); ok {
		return counter.Partitions()
	}
	return 1
}

// partitions returns the number of the topic's partitions, 0 while it is not open.
func (s *sink) partitions() int {
	if p := s.opened.Load(); p != nil {
		return partitionsOf(*p)
	}
	return 0
}
