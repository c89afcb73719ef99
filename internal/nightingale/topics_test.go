package nightingale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTemplates(t *testing.T) {
	labels := []label{{"__name__", "up"}, {"empty", ""}, {"job", "a/b c{é}"}, {"long", strings.Repeat("x", 100)}, {"part", "x-partition-12"}, {"sys", "__change_events"}, {"up", ".."}}
	for text, want := range map[string]string{
		"persistent://public/default/metrics":              "persistent://public/default/metrics",
		"persistent://public/{tenant}/metrics-{label.job}": "persistent://public/acme/metrics-a_b_c____",
		"persistent://{tenant}/{label.zone}/{name}":        "persistent://acme/none/up",
		"non-persistent://a/b/{label.sys}":                 "non-persistent://a/b/x_change_events",
		"persistent://a/b/{label.part}":                    "persistent://a/b/x-partition-12_",
		"persistent://a/{label.up}/{label.up}":             "persistent://a/__/x_",
		"persistent://a/b/c-{label.up}":                    "persistent://a/b/c-..",
	} {
		parsed, err := parseTemplate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, string(parsed.render(nil, "acme", labels)), text)
	}
	parsed, err := parseTemplate("persistent://a/b/{label.long}")
	require.NoError(t, err)
	one := string(parsed.render(nil, "", labels))
	labels[3].value += "y"
	other := string(parsed.render(nil, "", labels))
	assert.NotEqual(t, one, other, "long values stay apart")
	assert.Len(t, one, len("persistent://a/b/")+maxTopicPart)
}

// cluster is a scripted Pulsar: what each topic has taken, and how.
type cluster struct {
	mu      sync.Mutex
	records map[string][]string
	opens   map[string]int
	closes  map[string]int
	refuse  map[string]error           // to open
	broken  map[string]error           // outcomes, though it is open
	hold    map[string][]func()        // outcomes that wait, where the topic is a key
	parts   int                        // partitions
	opening map[string]<-chan struct{} // opens wait for it
}

func newCluster() *cluster {
	return &cluster{records: map[string][]string{}, opens: map[string]int{}, closes: map[string]int{}, parts: 1}
}

func (c *cluster) open(ctx context.Context, topic string) (publisher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opens[topic]++
	if err := c.refuse[topic]; err != nil {
		return nil, err
	}
	if wait := c.opening[topic]; wait != nil {
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return &clusterPublisher{c, topic}, nil
}

type clusterPublisher struct {
	c     *cluster
	topic string
}

func (p *clusterPublisher) PublishAsync(_ context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if err := p.c.broken[p.topic]; err != nil {
		done(messaging.MessageID{}, err)
		return
	}
	p.c.records[p.topic] = append(p.c.records[p.topic], string(r.Payload))
	if _, held := p.c.hold[p.topic]; held {
		p.c.hold[p.topic] = append(p.c.hold[p.topic], func() { done(messaging.MessageID{}, nil) })
		return
	}
	done(messaging.MessageID{}, nil)
}

func (p *clusterPublisher) Partitions() int                 { return p.c.parts }
func (p *clusterPublisher) Flush(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (p *clusterPublisher) Close(context.Context) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.c.closes[p.topic]++
	return nil
}

func (c *cluster) topics() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name := range c.records {
		names = append(names, strings.TrimPrefix(name, "persistent://public/"))
	}
	slices.Sort(names)
	return names
}

// templated is a receiver with topics by template on a cluster.
func templated(t *testing.T, c *cluster, change func(*Config)) *double {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Topic = "persistent://public/{tenant}/m-{label.job}"
	cfg.RequestTimeout = 300 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	require.Empty(t, config.Validate(cfg))
	d := newDouble(t, func(c *Config) { *c = cfg })
	all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{late: cfg.RequestTimeout}, nil, c.open)
	d.receiver.topics = all // before the first request
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- all.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
		assert.NoError(t, all.close(context.Background()))
	})
	return d
}

func jobs(names ...string) *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for _, name := range names {
		req.Timeseries = append(req.Timeseries, oneSeries("__name__", "up", "job", name).Timeseries...)
	}
	return req
}

func TestSeriesGoToTheirTopics(t *testing.T) {
	for _, format := range formatNames() {
		t.Run(format, func(t *testing.T) {
			c := newCluster()
			c.parts = 3
			d := templated(t, c, func(cfg *Config) { cfg.Format = format })
			status, text, _ := d.post(t, compress(marshal(t, jobs("a", "b", "a", "c/d"))))
			require.Equal(t, http.StatusNoContent, status, text)
			status, text, _ = d.post(t, compress(marshal(t, jobs("a"))), "X-Scope-OrgID", "acme")
			require.Equal(t, http.StatusNoContent, status, text)
			assert.Equal(t, []string{"acme/m-a", "public/m-a", "public/m-b", "public/m-c_d"}, c.topics())
			if !findFormat(format).byPartition {
				assert.Len(t, c.records["persistent://public/public/m-a"], 2)
			}
			assert.InDelta(t, 5, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
		})
	}
}

func TestTenantsThatNoTopicCanHold(t *testing.T) {
	c := newCluster()
	d := templated(t, c, nil)
	for _, tenant := range []string{"a/b", "a!", "..", "__a", "a-partition-1", "partition-12", strings.Repeat("a", 65)} {
		status, text, _ := d.post(t, compress(marshal(t, jobs("a"))), "X-Scope-OrgID", tenant)
		assert.Equal(t, http.StatusBadRequest, status, tenant)
		assert.Contains(t, text, "X-Scope-OrgID")
	}
	assert.Empty(t, c.topics())
}

// TestTopicsTellTenantsApart: a template with which one tenant could reach another's
// topics is refused.
func TestTopicsTellTenantsApart(t *testing.T) {
	for text, good := range map[string]bool{
		"persistent://public/default/{tenant}-{label.job}":   false,
		"persistent://public/default/{name}{tenant}":         false,
		"persistent://public/{tenant}-x-{name}/m":            false,
		"persistent://public/default/{tenant}{tenant}":       false,
		"persistent://public/default/m-partition-{tenant}":   false,
		"persistent://public/default/m-partition-1{tenant}":  false,
		"persistent://public/default/m-part{tenant}":         false,
		"persistent://public/default/m-p{tenant}":            false,
		"persistent://public/default/-partition-{tenant}":    false,
		"persistent://public/default/m-partition-{tenant}-x": true,
		"persistent://public/default/partition-{tenant}":     true,
		"persistent://public/m-partition-{tenant}/x":         true,
		"persistent://public/{tenant}/{label.job}-{name}":    true,
		"persistent://public/default/m-{tenant}":             true,
		"persistent://{tenant}/{label.job}/m":                true,
	} {
		_, err := parseTemplate(text)
		if good {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, "{tenant}", text)
		}
	}
}

// TestTopicsPastTheBound: these series are refused for good, and said to be; the
// others are written.
func TestTopicsPastTheBound(t *testing.T) {
	c := newCluster()
	d := templated(t, c, func(cfg *Config) { cfg.Topics.MaxTopics = 2 })
	status, text, _ := d.post(t, compress(marshal(t, jobs("a", "b", "c", "a", "d"))))
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, text, "2 of 5 series are invalid, the others were written")
	assert.Contains(t, text, "topics.max_topics")
	assert.Equal(t, []string{"public/m-a", "public/m-b"}, c.topics())
	assert.Len(t, c.records["persistent://public/public/m-a"], 2)
	assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
	assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("max_topics")), 0)
}

func TestTopicsPastTheBoundOverflow(t *testing.T) {
	c := newCluster()
	d := templated(t, c, func(cfg *Config) {
		cfg.Topics.MaxTopics, cfg.Topics.OverflowTopic = 2, "persistent://public/default/rest"
	})
	status, text, _ := d.post(t, compress(marshal(t, jobs("a", "b", "c"))))
	assert.Equal(t, http.StatusNoContent, status, text)
	assert.Equal(t, []string{"default/rest", "public/m-a"}, c.topics())
	assert.Len(t, c.records["persistent://public/default/rest"], 2)
	assert.InDelta(t, 2, testutil.ToFloat64(d.receiver.topics.metrics.overflow), 0)
}

const (
	goodTopic = "persistent://public/public/m-good"
	badTopic  = "persistent://public/public/m-bad"
	restTopic = "persistent://public/default/rest"
)

// count returns how many records a topic has taken.
func (c *cluster) count(topic string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.records[topic])
}

// TestATopicThatCannotBeOpened refuses its own series, leaves the service up, and is
// tried again.
func TestATopicThatCannotBeOpened(t *testing.T) {
	c := newCluster()
	c.refuse = map[string]error{badTopic: messaging.ErrTopicTerminated}
	d := templated(t, c, nil)
	for range 2 {
		status, text, _ := d.post(t, compress(marshal(t, jobs("bad", "good"))))
		assert.Equal(t, http.StatusBadRequest, status, text)
		assert.Contains(t, text, "1 of 2 series are invalid, the others were written")
		assert.Contains(t, text, `job="bad"}: its topic cannot be opened`)
	}
	assert.Equal(t, 1, c.count(goodTopic))
	assert.NoError(t, d.receiver.topics.check(t.Context()))
	assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("topic_refused")), 0)

	c.mu.Lock()
	c.refuse = nil
	c.mu.Unlock()
	d.receiver.topics.sweep(time.Now())
	status, text, _ := d.post(t, compress(marshal(t, jobs("bad"))))
	assert.Equal(t, http.StatusNoContent, status, text)
}

func TestATopicThatCannotBeOpenedOverflows(t *testing.T) {
	c := newCluster()
	c.refuse = map[string]error{badTopic: messaging.ErrTopicTerminated}
	d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = restTopic })
	require.NoError(t, d.receiver.topics.opened(t.Context()))
	for i := range 2 {
		status, text, _ := d.post(t, compress(marshal(t, jobs("bad", "good", fmt.Sprint(i)))))
		assert.Equal(t, http.StatusNoContent, status, text)
	}
	assert.Equal(t, 2, c.count(goodTopic))
	assert.Equal(t, 2, c.count(restTopic))
}

// terminate makes an open topic refuse what comes, and opening it again fail.
func (c *cluster) terminate(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = map[string]error{topic: messaging.ErrTopicTerminated}
	c.refuse = map[string]error{topic: messaging.ErrTopicTerminated}
}

// TestATopicThatIsTerminatedWhileItIsOpen becomes one that cannot be opened: before, its
// requests were answered 503 for ever, and the other series of their senders waited
// behind them.
func TestATopicThatIsTerminatedWhileItIsOpen(t *testing.T) {
	for _, overflow := range []string{"", restTopic} {
		c := newCluster()
		d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = overflow })
		status, text, _ := d.post(t, compress(marshal(t, jobs("bad", "good"))))
		require.Equal(t, http.StatusNoContent, status, text)

		c.terminate(badTopic)
		post := func() { status, text, _ = d.post(t, compress(marshal(t, jobs("bad", "good", "good")))) }
		post() // the one that meets it: its sender comes again
		require.Equal(t, http.StatusServiceUnavailable, status, text)
		require.Eventually(t, func() bool {
			d.receiver.topics.mu.Lock()
			defer d.receiver.topics.mu.Unlock()
			return d.receiver.topics.known[badTopic].refused() != nil
		}, 10*time.Second, time.Millisecond)
		for range 2 {
			post()
			if overflow != "" {
				assert.Equal(t, http.StatusNoContent, status, text)
				continue
			}
			assert.Equal(t, http.StatusBadRequest, status, text)
			assert.Contains(t, text, `job="bad"}: its topic cannot be opened, or was terminated`)
		}
		assert.Equal(t, 3, c.count(goodTopic), "what is stored is not stored again")
		if overflow != "" {
			assert.Equal(t, 1, c.count(restTopic))
		}
		assert.NoError(t, d.receiver.topics.check(t.Context()))

		d.receiver.topics.sweep(time.Now())
		c.mu.Lock()
		c.refuse, c.broken = nil, nil // it was made again
		c.mu.Unlock()
		status, text, _ = d.post(t, compress(marshal(t, jobs("bad"))))
		assert.Equal(t, http.StatusNoContent, status, text)
		assert.Equal(t, 2, c.count(badTopic))
	}
}

// TestATopicOfTheConfigurationThatIsTerminatedEndsTheService: as it does at the start.
func TestATopicOfTheConfigurationThatIsTerminatedEndsTheService(t *testing.T) {
	for cause, ack := range map[error]acknowledging{
		messaging.ErrTopicTerminated: {},
		messaging.ErrProducerLost:    {queued: &dropCounter{log: zap.NewNop(), dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})}},
	} {
		c := newCluster()
		c.broken = map[string]error{restTopic: fmt.Errorf("%w: told by the broker", cause)}
		cfg := DefaultConfig()
		cfg.Topic = restTopic
		all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), ack, nil, c.open)
		ended := make(chan error, 1)
		go func() { ended <- all.run(t.Context()) }()
		require.NoError(t, all.opened(t.Context()))
		topic := all.acquire([]byte(restTopic))
		_, err := topic.sink.publish(t.Context(), three())
		all.release(topic)
		assert.Equal(t, http.StatusServiceUnavailable, statusOf(t, err))
		err = <-ended
		require.ErrorIs(t, err, cause)
		assert.Contains(t, err.Error(), restTopic)
		assert.ErrorIs(t, all.check(t.Context()), cause)
		require.NoError(t, all.close(t.Context()))
	}
}

// TestATopicThatAnotherOwnerTookIsOpenedAgain: it is not refused, which would lose its
// series.
func TestATopicThatAnotherOwnerTookIsOpenedAgain(t *testing.T) {
	c := newCluster()
	c.broken = map[string]error{badTopic: messaging.ErrProducerLost}
	d := templated(t, c, nil)
	for range 2 {
		status, text, _ := d.post(t, compress(marshal(t, jobs("bad"))))
		assert.Equal(t, http.StatusServiceUnavailable, status, text)
	}
	<-d.receiver.topics.known[badTopic].ended
	d.receiver.topics.sweep(time.Now())
	c.mu.Lock()
	c.broken = nil
	c.mu.Unlock()
	status, text, _ := d.post(t, compress(marshal(t, jobs("bad"))))
	assert.Equal(t, http.StatusNoContent, status, text)
}

// TestAStuckTopicKeepsNoOtherFromBeingOpenedAgain: of a body whose other part is stuck a topic
// that has ended is let go.
func TestAStuckTopicKeepsNoOtherFromBeingOpenedAgain(t *testing.T) {
	c := newCluster()
	c.broken, c.hold = map[string]error{badTopic: messaging.ErrProducerLost}, map[string][]func(){goodTopic: nil}
	d := templated(t, c, nil)
	status, text, _ := d.post(t, compress(marshal(t, jobs("bad", "good"))))
	require.Equal(t, http.StatusServiceUnavailable, status, text)
	d.receiver.topics.mu.Lock()
	ended := d.receiver.topics.known[badTopic].ended
	d.receiver.topics.mu.Unlock()
	<-ended
	d.receiver.topics.sweep(time.Now())
	c.mu.Lock()
	c.broken = nil
	c.mu.Unlock()
	status, text, _ = d.post(t, compress(marshal(t, jobs("bad"))))
	assert.Equal(t, http.StatusNoContent, status, text)
	c.mu.Lock()
	held := c.hold[goodTopic]
	c.mu.Unlock()
	require.Len(t, held, 1)
	held[0]()
}

// TestWhereABodyIsStoredIsForgottenOnceAllOfItIs: a thousand topics of each of ten thousand
// bodies would be a lot.
func TestWhereABodyIsStoredIsForgottenOnceAllOfItIs(t *testing.T) {
	c := newCluster()
	d := templated(t, c, nil)
	for range 2 {
		status, text, _ := d.post(t, compress(marshal(t, jobs("a", "b", "c"))))
		require.Equal(t, http.StatusNoContent, status, text)
	}
	assert.Equal(t, 1, c.count("persistent://public/public/m-a"))
	l := d.receiver.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(t, l.known, 1)
	for _, a := range l.known {
		assert.Empty(t, a.stored.topics)
	}
}

// TestATopicThatOpensLateDoesNotHoldTheOthers: what is stored of a body is not
// published again when the rest comes again.
func TestATopicThatOpensLateDoesNotHoldTheOthers(t *testing.T) {
	for _, format := range formatNames() {
		t.Run(format, func(t *testing.T) {
			c := newCluster()
			opening := make(chan struct{})
			c.opening = map[string]<-chan struct{}{badTopic: opening}
			d := templated(t, c, func(cfg *Config) { cfg.Format, cfg.RequestTimeout = format, time.Second })
			body := marshal(t, jobs("bad", "good"))
			for range 3 {
				status, text, header := d.post(t, compress(body))
				assert.Equal(t, http.StatusServiceUnavailable, status)
				assert.Contains(t, text, "not open yet")
				assert.NotEmpty(t, header.Get("Retry-After"))
			}
			assert.Equal(t, 1, c.count(goodTopic))
			close(opening)
			require.NoError(t, d.receiver.topics.opened(t.Context()))
			for range 2 {
				status, text, _ := d.post(t, compress(body))
				assert.Equal(t, http.StatusNoContent, status, text)
			}
			assert.Equal(t, 1, c.count(goodTopic))
			assert.Equal(t, 1, c.count(badTopic))
			assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
		})
	}
}

func TestATopicThatOpensLateOverflows(t *testing.T) {
	c := newCluster()
	c.opening = map[string]<-chan struct{}{badTopic: make(chan struct{})}
	d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic, cfg.RequestTimeout = restTopic, 500*time.Millisecond })
	require.NoError(t, d.receiver.topics.opened(t.Context(), restTopic))
	for i := range 2 {
		status, text, _ := d.post(t, compress(marshal(t, jobs("bad", "good", fmt.Sprint(i)))))
		assert.Equal(t, http.StatusNoContent, status, text)
	}
	assert.Equal(t, 2, c.count(goodTopic))
	assert.Equal(t, 2, c.count(restTopic))
}

// TestOneLateTopicDoesNotMultiplyTheOthers: neither while its attempt is under way,
// nor when it is refused at once because the topic is away.
func TestOneLateTopicDoesNotMultiplyTheOthers(t *testing.T) {
	c := newCluster()
	c.hold = map[string][]func(){badTopic: nil}
	d := templated(t, c, func(cfg *Config) { cfg.RequestTimeout = 50 * time.Millisecond })
	for _, names := range [][]string{{"good", "bad"}, {"bad", "good"}} {
		body := marshal(t, jobs(names...))
		for range 5 {
			status, text, _ := d.post(t, compress(body))
			assert.Equal(t, http.StatusServiceUnavailable, status, text)
		}
	}
	assert.Equal(t, 2, c.count(goodTopic), "two bodies")
	assert.Equal(t, 1, c.count(badTopic), "one before it was away")
	c.mu.Lock()
	held := c.hold[badTopic]
	c.mu.Unlock()
	for _, done := range held {
		done()
	}
}

// TestWhatCannotBeStoredIsToldInTheEnd: a part that is too large is final for it, and
// the sender hears of it when the other parts are stored.
func TestWhatCannotBeStoredIsToldInTheEnd(t *testing.T) {
	d := templated(t, newCluster(), nil)
	var published []string
	away := true
	d.receiver.topics.stage = func(s *sink, _ context.Context, _ []messaging.Record) (bool, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		published = append(published, s.topic)
		switch {
		case s.topic == goodTopic:
			return true, door.Invalid(reasonRecordTooLarge, "too large")
		case away:
			return true, door.Unavailable("pulsar_away", door.RetryAway, "away")
		default:
			return true, nil
		}
	}
	body := marshal(t, jobs("bad", "good"))
	status, _, _ := d.post(t, compress(body))
	assert.Equal(t, http.StatusServiceUnavailable, status)
	d.mu.Lock()
	away = false
	d.mu.Unlock()
	for range 2 {
		status, _, _ = d.post(t, compress(body))
		assert.Equal(t, http.StatusBadRequest, status)
	}
	slices.Sort(published)
	assert.Equal(t, []string{badTopic, badTopic, goodTopic}, published)
}

// TestATopicOfTheConfigurationThatCannotBeOpenedEndsTheService: nothing would ever
// be stored there.
func TestATopicOfTheConfigurationThatCannotBeOpenedEndsTheService(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"topic": func(cfg *Config) { cfg.Topic = restTopic },
		"overflow": func(cfg *Config) {
			cfg.Topic, cfg.Topics.OverflowTopic = "persistent://public/default/{name}", restTopic
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.refuse = map[string]error{restTopic: messaging.ErrTopicTerminated}
			cfg := DefaultConfig()
			change(&cfg)
			all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{}, nil, c.open)
			require.ErrorIs(t, all.run(t.Context()), messaging.ErrTopicTerminated)
			require.Error(t, all.check(t.Context()))
			require.NoError(t, all.close(t.Context()))
		})
	}
}

// TestReadyOnlyOncePulsarHasAnswered: where senders name all topics there is none to open
// before the first series.
func TestReadyOnlyOncePulsarHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Topic = "persistent://public/default/{name}"
		all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{}, nil, newCluster().open)
		answers := make(chan struct{})
		all.reachFirst(func(ctx context.Context) error {
			select {
			case <-answers:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		require.ErrorIs(t, all.check(t.Context()), errNotReached)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.run(ctx) }()
		synctest.Wait()
		require.ErrorIs(t, all.check(t.Context()), errNotReached)
		close(answers)
		synctest.Wait()
		require.NoError(t, all.check(t.Context()))
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.close(t.Context()))
	})
}

// TestAPinnedTopicTellsWhetherPulsarIsThere: no other question is asked.
func TestAPinnedTopicTellsWhetherPulsarIsThere(t *testing.T) {
	for _, change := range []func(*Config){
		func(cfg *Config) { cfg.Topic = restTopic },
		func(cfg *Config) {
			cfg.Topic, cfg.Topics.OverflowTopic = "persistent://public/default/{name}", restTopic
		},
	} {
		cfg := DefaultConfig()
		change(&cfg)
		all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{}, nil, newCluster().open)
		all.reachFirst(func(context.Context) error { panic("asked") })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.run(ctx) }()
		require.NoError(t, all.opened(t.Context()))
		require.NoError(t, all.check(t.Context()))
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.close(t.Context()))
	}
}

func TestATopicThatDoesNotOpenInTime(t *testing.T) {
	c := newCluster()
	c.opening = map[string]<-chan struct{}{"persistent://public/public/m-slow": make(chan struct{})}
	d := templated(t, c, nil)
	status, text, _ := d.post(t, compress(marshal(t, jobs("slow"))))
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, text, "not open yet")
}

func TestIdleTopicsAreClosedAndMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		cfg := DefaultConfig()
		cfg.Topic = "persistent://public/default/{name}"
		cfg.Topics.MaxTopics, cfg.Topics.IdleAfter = 1, time.Minute
		all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{}, nil, c.open)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.run(ctx) }()
		first := all.acquire([]byte("one"))
		require.NotNil(t, first)
		require.NoError(t, all.await(ctx, first))
		time.AfterFunc(10*time.Minute, func() { all.release(first) })
		assert.Nil(t, all.acquire([]byte("two")))
		after := time.NewTimer(10*time.Minute + 59*time.Second)
		<-after.C
		synctest.Wait()
		assert.Nil(t, all.acquire([]byte("two")), "not idle for long enough")
		after.Reset(time.Minute)
		<-after.C
		synctest.Wait()
		second := all.acquire([]byte("two"))
		require.NotNil(t, second)
		require.NoError(t, all.await(ctx, second))
		c.mu.Lock()
		assert.Equal(t, map[string]int{"one": 1}, c.closes)
		c.mu.Unlock()
		all.release(second)
		cancel()
		assert.NoError(t, <-ended)
		assert.Nil(t, all.acquire([]byte("two2")), "no new topics while stopping")
		assert.NoError(t, all.close(context.Background()))
		assert.Equal(t, map[string]int{"one": 1, "two": 1}, c.closes)
	})
}

// TestTopicsShareOneBound: a stuck topic may not take memory without end.
func TestTopicsShareOneBound(t *testing.T) {
	c := newCluster()
	stuck := "persistent://public/public/m-stuck"
	c.hold = map[string][]func(){stuck: nil}
	d := templated(t, c, func(cfg *Config) { cfg.Profile.MaxPendingBytes = 600 })
	status, text, _ := d.post(t, compress(marshal(t, jobs("stuck", "stuck", "stuck", "stuck"))))
	assert.Equal(t, http.StatusServiceUnavailable, status, text)
	status, text, _ = d.post(t, compress(marshal(t, jobs("other"))))
	assert.Equal(t, http.StatusNoContent, status, "there is room for others: %s", text)
	c.mu.Lock()
	assert.Len(t, c.records[stuck], 2, "as many as there is room for")
	held := c.hold[stuck]
	delete(c.hold, stuck)
	c.mu.Unlock()
	for _, done := range held {
		done()
	}
	status, text, _ = d.post(t, compress(marshal(t, jobs("a", "b", "c", "d"))))
	assert.Equal(t, http.StatusNoContent, status, text)
}

// TestAStuckTopicHoldsItsOwnMessagesOnly: not those of the same bodies that others have
// stored.
func TestAStuckTopicHoldsItsOwnMessagesOnly(t *testing.T) {
	c := newCluster()
	c.hold = map[string][]func(){badTopic: nil}
	d := templated(t, c, nil)
	status, text, _ := d.post(t, compress(marshal(t, jobs(append(slices.Repeat([]string{"good"}, 1000), "bad")...))))
	assert.Equal(t, http.StatusServiceUnavailable, status, text)
	budget := d.receiver.budget
	require.Eventually(t, func() bool { return budget.Used() < 64<<10 }, 5*time.Second, time.Millisecond)
	assert.Positive(t, budget.Used())
	c.mu.Lock()
	held := c.hold[badTopic]
	c.mu.Unlock()
	for _, done := range held {
		done()
	}
	require.Eventually(t, func() bool { return budget.Used() == 0 }, 5*time.Second, time.Millisecond)
}

func TestTheErrorThatPassesOutweighs(t *testing.T) {
	assert.True(t, passes(errors.New("anything")))
	assert.True(t, passes(door.Unavailable("x", time.Second, "x")))
	assert.False(t, passes(door.Invalid("x", "x")))
}

// TestTheTopicOfTheConfigurationIsTakenAsItIs: what is changed in names that senders
// choose is an operator's own choice.
func TestTheTopicOfTheConfigurationIsTakenAsItIs(t *testing.T) {
	for _, topic := range []string{"persistent://public/default/m-partition-3", "persistent://public/default/__m"} {
		c := newCluster()
		d := templated(t, c, func(cfg *Config) { cfg.Topic = topic })
		require.NoError(t, d.receiver.topics.opened(t.Context()))
		status, text, _ := d.post(t, compress(marshal(t, jobs("a"))))
		require.Equal(t, http.StatusNoContent, status, text)
		assert.Equal(t, 1, c.count(topic))
		assert.Equal(t, map[string]int{topic: 1}, c.opens)
	}
}

// TestATopicIsOpenedBehindAllThatCloses: however often it is asked for meanwhile.
func TestATopicIsOpenedBehindAllThatCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Topic, cfg.Topics.IdleAfter = "persistent://public/default/{name}", time.Minute
		flush := make(chan struct{})
		opens := 0
		all := newTopics(zap.NewNop(), cfg, newTopicMetrics(prometheus.NewRegistry()), acknowledging{}, nil, func(context.Context, string) (publisher, error) {
			opens++
			return &slowCloser{closing: flush}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- all.run(ctx) }()
		for range 4 { // the first is open and takes long to close
			all.release(all.acquire([]byte("one")))
			<-time.After(5 * time.Minute) // the bubble's clock
			synctest.Wait()
		}
		assert.Equal(t, 1, opens, "while the first one still flushes")
		close(flush)
		synctest.Wait()
		assert.Equal(t, 2, opens)
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, all.close(t.Context()))
	})
}

// slowCloser is a publisher whose Close waits.
type slowCloser struct {
	publisher
	closing chan struct{}
}

func (p *slowCloser) Close(ctx context.Context) error {
	select {
	case <-p.closing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestWhatOverflowedIsNotTakenForStored: the overflow topic has a part of a body, and
// when the body comes again other series of it go there, too.
func TestWhatOverflowedIsNotTakenForStored(t *testing.T) {
	c := newCluster()
	c.opening = map[string]<-chan struct{}{goodTopic: make(chan struct{}), badTopic: make(chan struct{})}
	d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = restTopic })
	status, text, _ := d.post(t, compress(marshal(t, jobs("bad"))))
	require.Equal(t, http.StatusNoContent, status, text)
	require.Equal(t, 1, c.count(restTopic), "it does not open")

	body := marshal(t, jobs("bad", "good"))
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/api/v1/write", compress(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	ended := make(chan error, 1)
	go func() {
		resp, err := d.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	require.Eventually(t, func() bool { // it waits for the other topic, which may still open
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.opens[goodTopic] == 1
	}, 5*time.Second, time.Millisecond)
	hangUp()
	require.Error(t, <-ended)
	require.Eventually(t, func() bool { return c.count(restTopic) == 2 }, 5*time.Second, time.Millisecond)

	require.Eventually(t, func() bool { // the first may not have ended
		status, _, _ := d.post(t, compress(body))
		return status == http.StatusNoContent
	}, 5*time.Second, time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	assert.Contains(t, strings.Join(c.records[restTopic], ""), `"job":"good"`)
}
