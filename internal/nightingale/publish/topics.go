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

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/topic"
)

// TopicsConfig configures the topics that a topic with placeholders creates. Values are sanitised:
// letters, digits, "_", "-" and "." stay, other characters become "_". The value of a label that
// the series does not have is "none".
type TopicsConfig struct {
	// DefaultTenant replaces {tenant} for requests without the header X-Scope-OrgID. Default
	// public.
	DefaultTenant string `yaml:"default_tenant"`
	// MaxTopics is the maximum number of topics that are open at the same time. If all are open, a
	// new topic replaces an unused topic of the tenant that has opened the most, provided that its own
	// tenant has opened less than its share, the bound divided by the number of tenants. Otherwise its
	// series go to OverflowTopic. Without one they are refused with 400 and counted, and the other
	// series of the request are written. Default 100.
	MaxTopics int `yaml:"max_topics"`
	// OverflowTopic takes series beyond max_topics, series whose topic cannot be opened or is
	// terminated, and series whose topic is not open within half of request_timeout. It counts as
	// one of max_topics. Without it, series whose topic cannot be opened or is terminated are
	// refused with 400, and a request with a topic that is not open yet gets 503. Default: none.
	OverflowTopic string `yaml:"overflow_topic"`
	// IdleAfter is the time after which a topic without new records is closed. At least 1s. Default
	// 10m.
	IdleAfter time.Duration `yaml:"idle_after"`
}

// DefaultTopics returns the defaults.
func DefaultTopics() TopicsConfig {
	return TopicsConfig{DefaultTenant: "public", MaxTopics: 100, IdleAfter: 10 * time.Minute}
}

// Validate returns every fault.
func (c TopicsConfig) Validate() error {
	var errs []error
	if topic.CheckTenant(c.DefaultTenant) != nil {
		errs = append(errs, config.Fault("default_tenant", "must be letters, digits, '_', '-' or '.', got %q", c.DefaultTenant))
	}
	errs = append(errs, config.CheckPositive("max_topics", c.MaxTopics))
	errs = append(errs, config.CheckAtLeast("idle_after", c.IdleAfter, time.Second))
	if c.OverflowTopic != "" {
		if t, err := topic.Parse(c.OverflowTopic); err != nil {
			errs = append(errs, config.Fault("overflow_topic", "%s", err))
		} else if !t.Static() {
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

// Metrics are the metrics of topics. None has the topic as a label, because senders choose the
// topics.
type Metrics struct {
	open     prometheus.Gauge
	overflow prometheus.Counter
	dropped  prometheus.Counter
}

// NewMetrics registers the metrics of topics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_topics", Help: "Topics that are open or being opened; 1 if topic has no placeholders.",
		}),
		overflow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_topic_overflow_samples_total",
			Help: "Samples of all kinds that went to topics.overflow_topic: " +
				"topics.max_topics was reached, or their topic did not open or is terminated.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nightingale_dropped_messages_total",
			Help: "Messages that were answered 204 under ack: queued and could not be stored afterwards.",
		}),
	}
	reg.MustRegister(m.open, m.overflow, m.dropped)
	return m
}

// opener opens the publisher of a topic.
type opener = func(ctx context.Context, topic string) (Publisher, error)

// Topics holds a publisher for each topic of a template. The first record of a topic makes it open
// in the background. Idle topics are closed.
//
// The topic of a template without placeholders, and the overflow topic, are pinned: they are opened
// immediately and stay open.
type Topics struct {
	log      *zap.Logger
	metrics  *Metrics
	cfg      Config
	Template topic.Template
	why      func() error // returns why connecting to Pulsar fails, nil if unknown; may be nil
	open     opener
	bytes    *sharedBytes
	dropped  func(error) // see topicPublisher
	divert   deliverer   // see Divert; may be nil

	unreached atomic.Bool     // Pulsar has not answered yet, see ReachFirst
	failed    chan error      // gets the error of a pinned topic that takes no records
	ctx       context.Context // of the publishers
	cancel    context.CancelFunc
	flushing  context.Context // of closing idle topics; ends with Close
	abandon   context.CancelFunc

	mu      sync.Mutex
	known   map[string]*topicPublisher
	shares  *admission.Shares          // of known, by the tenant that has opened a topic
	closing map[string]*topicPublisher // topics that are being flushed and closed
}

// New returns the topics of a valid configuration. why returns why connecting to Pulsar fails; it
// may be nil.
func New(log *zap.Logger, cfg Config, m *Metrics, why func() error, open opener) *Topics {
	template, err := topic.Parse(cfg.Topic)
	if err != nil {
		panic("nightingale: " + err.Error()) // Validate has checked it
	}
	t := &Topics{
		log: log.Named("topics"), metrics: m, cfg: cfg, Template: template, why: why, open: open,
		bytes:  &sharedBytes{limit: cfg.PendingBytes, least: max(cfg.PendingBytes/int64(cfg.PendingRecords), 1)},
		failed: make(chan error, 1),
		known:  map[string]*topicPublisher{}, closing: map[string]*topicPublisher{}, shares: admission.NewShares(cfg.Topics.MaxTopics),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.flushing, t.abandon = context.WithCancel(context.Background())
	if cfg.Ack == AckQueued {
		t.dropped = func(err error) {
			m.dropped.Inc()
			t.log.Error("lost a message that was already acknowledged to its sender (ack: queued)", zap.Error(err))
		}
	}
	pinned := cfg.Topics.OverflowTopic
	if template.Static() {
		pinned = cfg.Topic
	}
	if pinned != "" {
		t.begin(pinned, "", true)
	}
	return t
}

// ReachFirst makes the readiness check fail until reach, which waits for an answer of Pulsar, has
// returned nil. It is needed if senders name all topics: then no topic is opened before the first
// series, and the service would be ready with a wrong address or an unreachable cluster. With a
// pinned topic, opening it has the same effect, and ReachFirst does nothing.
func (t *Topics) ReachFirst(reach func(ctx context.Context) error) {
	if t.Template.Static() || t.cfg.Topics.OverflowTopic != "" {
		return
	}
	t.unreached.Store(true)
	go func() { t.unreached.Store(reach(t.ctx) != nil) }()
}

// Run closes idle topics until ctx ends. It fails if a pinned topic cannot be opened, or takes no
// records any more.
func (t *Topics) Run(ctx context.Context) error {
	defer t.cancel()
	tick := time.NewTicker(max(t.cfg.Topics.IdleAfter/4, time.Second))
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
func (t *Topics) acquire(tenant string, name []byte, replace bool) *topicPublisher {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.known[string(name)]
	if p == nil {
		count := len(t.known) + len(t.closing)
		if t.closing[string(name)] != nil {
			count-- // the new one takes its place
		}
		if t.ctx.Err() != nil || count >= t.cfg.Topics.MaxTopics && !(replace && t.closeUnused(tenant)) {
			return nil
		}
		p = t.begin(string(name), tenant, false)
	}
	p.users++
	return p
}

func (t *Topics) release(p *topicPublisher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.users--
	p.lastUsed = time.Now()
}

// begin opens a topic in the background. The caller holds t.mu.
func (t *Topics) begin(name, tenant string, pinned bool) *topicPublisher {
	p := newTopicPublisher(t.log, name, t.why, t.cfg.RequestTimeout)
	p.tenant, p.pinned, p.dropped = tenant, pinned, t.dropped
	var ctx context.Context
	ctx, p.stop = context.WithCancel(t.ctx)
	before := t.closing[name]
	t.known[name] = p
	if !pinned { // without a pinned topic the service is not ready, and no request waits for it
		p.openUntil = time.Now().Add(t.cfg.RequestTimeout / 2) // the rest of the time is for the acknowledgement
		t.shares.Add(tenant, 1)
	}
	t.metrics.open.Set(float64(len(t.known)))
	go func() {
		defer close(p.ended)
		err := p.run(ctx, func(ctx context.Context) (Publisher, error) { return t.openPublisher(ctx, name, before) })
		if err == nil || ctx.Err() != nil {
			return
		}
		p.suspended.Begin(err)
		if pinned {
			t.failed <- fmt.Errorf("%s: %w", name, err)
			return
		}
		// Senders choose the name: a topic that takes no records must not stop the service.
		p.err = err
		t.log.Error("cannot publish to a topic: it cannot be opened, or is terminated", zap.String("topic", name), zap.Error(err))
	}()
	return p
}

// openPublisher opens the publisher of a topic after its predecessor of the same name is closed:
// newer records must not overtake those that it still holds. before may be nil.
func (t *Topics) openPublisher(ctx context.Context, name string, before *topicPublisher) (Publisher, error) {
	if before != nil {
		select {
		case <-before.closed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p, err := t.open(ctx, name)
	if err != nil || t.Template.Static() { // a single publisher has its own bounds
		return p, err
	}
	return t.bytes.bound(p), nil
}

// usable reports whether series may go to a topic, or wait for it. If there is an overflow topic,
// they do not wait for one that takes long to open.
func (t *Topics) usable(p *topicPublisher) bool {
	if p.pinned {
		return true // if it cannot be opened, the service ends: see Run
	}
	return p.refused() == nil && (t.cfg.Topics.OverflowTopic == "" || isClosed(p.opened) || time.Now().Before(p.openUntil))
}

// Sweep closes idle topics. It also removes topics that take no records, so that the next series
// of such a topic makes it open again.
func (t *Topics) Sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.known {
		if t.unused(p) && (isClosed(p.ended) || now.Sub(p.lastUsed) >= t.cfg.Topics.IdleAfter) {
			t.close(p)
		}
	}
}

// unused reports whether a topic may be closed now. The caller holds t.mu.
func (t *Topics) unused(p *topicPublisher) bool {
	if p.pinned || p.users > 0 || t.closing[p.name] != nil {
		return false // in the last case its successor would have to wait for two others
	}
	// An open topic that is unavailable holds records that are not acknowledged.
	return isClosed(p.ended) || !isClosed(p.opened) || p.suspended.Err() == nil
}

// closeUnused closes an unused topic of the tenant with the most topics for a new one of the given
// tenant. It reports whether it closes one. Until that is done there is one topic more than
// allowed, so at most a tenth of max_topics may be closing. The caller holds t.mu.
func (t *Topics) closeUnused(tenant string) bool {
	from := t.shares.EvictFrom(tenant)
	if from == tenant || len(t.closing) > t.cfg.Topics.MaxTopics/10 {
		return false
	}
	var oldest *topicPublisher
	for _, p := range t.known {
		if p.tenant == from && t.unused(p) && (oldest == nil || p.lastUsed.Before(oldest.lastUsed)) {
			oldest = p
		}
	}
	if oldest != nil {
		t.close(oldest)
	}
	return oldest != nil
}

// close removes an unused topic, and closes it in the background. It has no timeout, because a
// successor must not overtake the topic's records. The caller holds t.mu.
func (t *Topics) close(p *topicPublisher) {
	delete(t.known, p.name)
	t.shares.Add(p.tenant, -1)
	t.closing[p.name] = p
	t.metrics.open.Set(float64(len(t.known)))
	go func() {
		p.stop()
		<-p.ended
		if err := p.close(t.flushing); err != nil {
			t.log.Error("cannot close an idle topic", zap.String("topic", p.name), zap.Error(err))
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.closing, p.name)
		close(p.closed)
	}()
}

var errNotReached = errors.New("no answer from Pulsar yet")

// Check is the readiness check. It fails if all topics are unavailable, not counting topics that
// take no records: senders choose the topics, and a bad choice must not make the service unready.
func (t *Topics) Check(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unavailable error
	for _, p := range t.known {
		if p.refused() != nil {
			continue
		}
		if unavailable = p.suspended.Err(); unavailable == nil {
			return nil
		}
	}
	if unavailable == nil && t.unreached.Load() {
		return refusal.WithCause(errNotReached, t.why)
	}
	return unavailable
}

// Close flushes and closes all publishers concurrently.
func (t *Topics) Close(ctx context.Context) error {
	t.cancel()
	defer t.abandon()
	defer context.AfterFunc(ctx, t.abandon)()
	t.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(t.known)), slices.Collect(maps.Values(t.closing)))
	t.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			<-p.ended
			errs[i] = p.close(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
