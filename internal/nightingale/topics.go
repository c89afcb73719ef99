package nightingale

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TopicsConfig is about the topics that a topic with placeholders makes. Values are sanitised: letters, digits, "_", "-" and "." stay, all else
// becomes "_"; a label that a series has not is "none".
type TopicsConfig struct {
	// DefaultTenant is {tenant} of requests without the header X-Scope-OrgID. Default public.
	DefaultTenant string `yaml:"default_tenant"`
	// MaxTopics bounds the topics open at one time. Series of a further one are refused with 400 and counted, the others of the request are
	// written; with OverflowTopic they go there instead. Default 100.
	MaxTopics int `yaml:"max_topics"`
	// OverflowTopic takes the series for which max_topics leaves no topic, those whose topic cannot be opened or is terminated, and those whose topic
	// is not open within half of request_timeout; it is one of them. Without it, series whose topic cannot be opened, or is terminated, are refused
	// with 400, and those whose topic is not open yet have their request answered 503. Default: none.
	OverflowTopic string `yaml:"overflow_topic"`
	// IdleAfter is how long a topic stays open without records. Default 10m.
	IdleAfter time.Duration `yaml:"idle_after"`
}

func defaultTopics() TopicsConfig {
	return TopicsConfig{DefaultTenant: "public", MaxTopics: 100, IdleAfter: 10 * time.Minute}
}

// Validate returns every fault.
func (c TopicsConfig) Validate() error {
	var errs []error
	if checkTopicTenant(c.DefaultTenant) != nil {
		errs = append(errs, config.Fault("default_tenant", "must be letters, digits, '_', '-' or '.', got %q", c.DefaultTenant))
	}
	if c.MaxTopics < 1 {
		errs = append(errs, config.Fault("max_topics", "must be > 0, got %d", c.MaxTopics))
	}
	if c.IdleAfter < time.Second {
		errs = append(errs, config.Fault("idle_after", "must be at least 1s, got %s", c.IdleAfter))
	}
	if c.OverflowTopic != "" {
		if t, err := parseTemplate(c.OverflowTopic); err != nil {
			errs = append(errs, config.Fault("overflow_topic", "%s", err))
		} else if !t.static() {
			errs = append(errs, config.Fault("overflow_topic", "must not have placeholders, got %q", c.OverflowTopic))
		}
	}
	return errors.Join(errs...)
}

// topics is a sink for each topic of a template; of a template without placeholders
// that is one. They are opened by the first record, in the background, and closed
// when idle. What all of them hold together is bounded as what one publisher holds
// is.
//
// The topic of a template without placeholders, and the overflow topic, are opened
// at once and stay open.
type topics struct {
	log      *zap.Logger
	metrics  *topicMetrics
	cfg      TopicsConfig
	template template
	why      func() error // why Pulsar cannot be connected to, nil while that is not known; may be nil
	open     func(ctx context.Context, topic string) (publisher, error)
	reach    func(ctx context.Context) error // see reachFirst; nil for none
	unknown  atomic.Bool                     // Pulsar has not answered yet
	room     *room
	least    int64 // what a record takes of it
	ack      acknowledging
	patience time.Duration // of requests, with a topic that is being opened; the rest of their time is for the acknowledgement

	stage  func(*sink, context.Context, []messaging.Record) (free bool, err error)
	failed chan error // a pinned topic cannot be opened, or takes nothing any more

	background context.Context // of the sinks
	cancel     context.CancelFunc
	closings   context.Context // of what closes idle topics
	giveUp     context.CancelFunc

	mu      sync.Mutex
	known   map[string]*topic
	closing map[string]*topic // their flush is under way
}

// topic is one of them.
type topic struct {
	name  string
	sink  *sink
	until time.Time // requests wait for the opening until then
	stop  context.CancelFunc
	ended chan struct{} // the sink's run has returned
	gone  chan struct{} // the publisher is closed
	fault error         // why it takes no record, once ended is closed

	pinned bool // the configuration names it: it is never idle

	// Under topics.mu.
	users int
	used  time.Time
}

func newTopics(log *zap.Logger, cfg Config, m *topicMetrics, ack acknowledging, why func() error, open func(context.Context, string) (publisher, error)) *topics {
	parsed, err := parseTemplate(cfg.Topic)
	if err != nil {
		panic("nightingale: " + err.Error()) // Validate has checked it
	}
	t := &topics{
		log: log.Named("topics"), metrics: m, cfg: cfg.Topics, template: parsed, why: why, open: open, ack: ack, patience: cfg.RequestTimeout / 2,
		room:  newRoom(cfg.Profile.MaxPendingBytes),
		least: max(cfg.Profile.MaxPendingBytes/int64(cfg.Profile.MaxPendingRecords), 1),
		stage: (*sink).publish, failed: make(chan error, 1),
		known: map[string]*topic{}, closing: map[string]*topic{},
	}
	t.background, t.cancel = context.WithCancel(context.Background())
	t.closings, t.giveUp = context.WithCancel(context.Background())
	if t.template.static() {
		t.pin(cfg.Topic)
	} else if t.cfg.OverflowTopic != "" {
		t.pin(t.cfg.OverflowTopic)
	}
	return t
}

// pin opens a topic that is never idle. No request waits for it: the service is not
// ready without it.
func (t *topics) pin(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin(&topic{name: name, pinned: true, users: 1}, nil)
}

// run closes idle topics until ctx ends. It fails when a pinned topic cannot be
// opened, or takes no record any more.
func (t *topics) run(ctx context.Context) error {
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
			t.sweep(now)
		}
	}
}

// acquire returns the topic of that name for use until release, or nil when there
// would be too many. name is copied.
func (t *topics) acquire(name []byte) *topic {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.known[string(name)]
	if e == nil {
		// The overflow topic always has its place.
		others := len(t.known) + len(t.closing)
		limit := t.cfg.MaxTopics
		if o := t.cfg.OverflowTopic; o != "" && t.known[o] == nil && string(name) != o {
			limit--
		}
		before := t.closing[string(name)]
		if others >= limit && before == nil && string(name) != t.cfg.OverflowTopic || t.background.Err() != nil {
			return nil
		}
		e = &topic{name: string(name), until: time.Now().Add(t.patience)}
		t.begin(e, before)
	}
	e.users++
	return e
}

// begin opens a topic in the background, behind the closing of its predecessor.
// t.mu is held.
func (t *topics) begin(e *topic, before *topic) {
	e.ended, e.gone = make(chan struct{}), make(chan struct{})
	e.sink = newSink(t.log, e.name, t.why, func(ctx context.Context) (publisher, error) {
		if before != nil { // or newer records could overtake those it still holds
			select {
			case <-before.gone:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		p, err := t.open(ctx, e.name)
		if err != nil || t.template.static() { // one publisher has bounds of its own
			return p, err
		}
		return &boundedPublisher{publisher: p, share: &roomShare{room: t.room}, least: t.least}, nil
	})
	e.sink.ack = t.ack
	var ctx context.Context
	ctx, e.stop = context.WithCancel(t.background)
	t.known[e.name] = e
	t.metrics.open.Set(float64(len(t.known)))
	go func() {
		defer close(e.ended)
		err := e.sink.run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		e.sink.trouble.Store(&err)
		switch {
		case e.pinned:
			t.failed <- fmt.Errorf("%s: %w", e.name, err)
		case errors.Is(err, messaging.ErrProducerLost):
			// It can be opened again, and is once it was swept.
			t.log.Error("lost a topic to another owner", zap.String("topic", e.name), zap.Error(err))
		default:
			// The name is a sender's choice: a topic that takes no records is no reason
			// to stop the service.
			e.fault = err
			t.log.Error("a topic takes no records", zap.String("topic", e.name), zap.Error(err))
		}
	}()
}

func (t *topics) release(e *topic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
	e.used = time.Now()
}

// sweep closes topics that were not used for a while, and forgets those that take no
// records, to try again when they are asked for.
func (t *topics) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, e := range t.known {
		ended := false
		select {
		case <-e.ended:
			ended = true
		default:
		}
		if e.users > 0 || !ended && now.Sub(e.used) < t.cfg.IdleAfter {
			continue
		}
		if !ended && e.sink.opened.Load() != nil && e.sink.away() != nil {
			continue // it holds what was not acknowledged
		}
		if t.closing[name] != nil {
			continue // it waits for its predecessor, and so must its successor
		}
		delete(t.known, name)
		t.closing[name] = e
		t.metrics.open.Set(float64(len(t.known)))
		go t.retire(e)
	}
}

// retire closes a topic that nobody uses. It waits as long as that takes: a
// successor must not overtake it.
func (t *topics) retire(e *topic) {
	e.stop()
	<-e.ended
	if err := e.sink.close(t.closings); err != nil {
		t.log.Error("cannot close an idle topic", zap.String("topic", e.name), zap.Error(err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.closing, e.name)
	close(e.gone)
}

// reachFirst has the service not be ready before reach has returned nil, which waits until
// Pulsar has answered. It is called before run. A pinned topic says so itself; where
// senders name them all there is none to open before the first series, and without an
// answer a cluster that is away, or an address that is wrong, would pass for one that is
// there.
func (t *topics) reachFirst(reach func(ctx context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) == 0 {
		t.reach = reach
		t.unknown.Store(true)
	}
}

var errNotReached = errors.New("no answer of Pulsar yet")

// check is the readiness check: a sender's choice of a topic that takes no records must
// not take the service out of rotation, so it fails when all others are away. Of those
// that take none Pulsar has said so.
func (t *topics) check(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var away error
	for _, e := range t.known {
		if e.refused() != nil {
			continue
		}
		if away = e.sink.away(); away == nil {
			return nil
		}
	}
	if away == nil && t.unknown.Load() {
		return door.Because(errNotReached, t.why)
	}
	return away
}

// close flushes and closes all publishers, at the same time.
func (t *topics) close(ctx context.Context) error {
	t.cancel()
	defer t.giveUp()
	defer context.AfterFunc(ctx, t.giveUp)()
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

// refused returns why the topic takes no record: it cannot be opened, or was terminated.
// It is nil while it may.
func (e *topic) refused() error {
	select {
	case <-e.ended:
		return e.fault
	default:
		return nil
	}
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

// await waits until the topic is open, and no longer than what was opened has taken:
// of a topic that does not open each request waits for a part of one request's time.
func (t *topics) await(ctx context.Context, e *topic) error {
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
	return door.Unavailable("topic_unavailable", door.RetryAway, "Pulsar is away: %s: %v", e.name, e.sink.away())
}

// boundedPublisher shares the bounds of pending bytes and records with others.
type boundedPublisher struct {
	publisher
	share *roomShare
	least int64
}

// PublishAsync waits for room as the publisher itself does under Block.
func (p *boundedPublisher) PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	const overhead = 64
	size := min(max(int64(len(r.Payload)+len(r.Key)+overhead), p.least), p.share.room.limit)
	if err := p.share.acquire(ctx, size); err != nil {
		done(messaging.MessageID{}, err)
		return
	}
	p.publisher.PublishAsync(ctx, r, func(id messaging.MessageID, err error) {
		p.share.release(size)
		done(id, err)
	})
}

// Partitions is the publisher's.
func (p *boundedPublisher) Partitions() int { return partitionsOf(p.publisher) }

// partitionsOf is the number of a publisher's partitions, 1 where it has no word on
// them.
func partitionsOf(p publisher) int {
	if counter, ok := p.(interface{ Partitions() int }); ok {
		return counter.Partitions()
	}
	return 1
}

// partitions is the number of the topic's partitions, 0 while it is not open.
func (s *sink) partitions() int {
	if p := s.opened.Load(); p != nil {
		return partitionsOf(*p)
	}
	return 0
}

// addressed is the part of a request's records that goes to one topic.
type addressed struct {
	topic    *topic
	from, to int   // of the records
	err      error // why the part is not published

	series     seriesSet
	overflowed int // samples of all kinds that another topic would have taken
}

// delivered is the outcome of a request's records.
type delivered struct {
	free bool // nothing reads the records any more
	// err is nil when every record is acknowledged. It is the error that the sender must
	// hear of: one that passes outweighs a final one.
	err    error
	stored storedParts // what need not be published again when the sender comes again
}

// storedParts is what is stored of a body that was not stored whole.
type storedParts struct {
	topics map[string]seriesSet // which of its series each of them has
	err    error                // a final one: some of it cannot be stored
}

// forget takes the part of a topic for not stored. Others may be reading the map.
func (p *storedParts) forget(name string) {
	p.topics = maps.Clone(p.topics)
	delete(p.topics, name)
}

// publish publishes each part to its topic. before is what is stored already. What the
// messages hold is given back part by part, and so are the topics: one that is waited for
// does not hold what is stored, nor keep another that has ended from being opened again.
func (t *topics) publish(ctx context.Context, out *outgoing, before storedParts, held *door.Hold) delivered {
	defer func() { out.parts = out.parts[:0] }()
	d := delivered{free: true, err: before.err, stored: before}
	results := make([]delivered, len(out.parts))
	var wg sync.WaitGroup
	for i, part := range out.parts {
		publish := func() {
			if results[i].free, results[i].err = true, part.err; part.err == nil {
				results[i].free, results[i].err = t.stage(part.topic.sink, ctx, out.records[part.from:part.to])
			}
			if results[i].free && len(out.parts) > 1 {
				held.Shrink(drop(out.records[part.from:part.to]))
			}
			t.release(part.topic)
		}
		if i+1 < len(out.parts) {
			wg.Go(publish)
		} else {
			publish() // here: most requests have one part
		}
	}
	wg.Wait()
	topics := maps.Clone(before.topics)
	for i, r := range results {
		d.free = d.free && r.free
		if d.err == nil || r.err != nil && passes(r.err) && !passes(d.err) {
			d.err = r.err
		}
		if !final(r.err) || len(results)+len(before.topics) == 1 {
			continue
		}
		if topics == nil {
			topics = map[string]seriesSet{}
		}
		topics[out.parts[i].topic.name] = out.parts[i].series
		if r.err != nil {
			d.stored.err = r.err
		}
	}
	d.stored.topics = topics
	return d
}

// drop lets go of records, and returns the bytes that they took.
func drop(records []messaging.Record) (size int64) {
	for i := range records {
		size += int64(len(records[i].Key) + len(records[i].Payload) + messageBytes)
	}
	clear(records)
	return size
}

// passes tells errors after which the sender comes again.
func passes(err error) bool {
	refused := (*door.Refusal)(nil)
	return !errors.As(err, &refused) || refused.Status >= http.StatusInternalServerError || refused.Status == door.StatusHungUp
}

func (t *topics) releaseAll(out *outgoing) {
	for _, part := range out.parts {
		t.release(part.topic)
	}
	out.parts = out.parts[:0]
}
