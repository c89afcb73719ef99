package nightingale

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/topic"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/fakebroker/publishtest"
)

// templated is a receiver without sockets, with topics by template on a cluster. Its tests use
// synctest: whatever waits there takes no time.
func templated(t *testing.T, c *publishtest.Cluster, change func(*Config)) *double {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Topic = "persistent://public/{tenant}/m-{label.job}"
	if change != nil {
		change(&cfg)
	}
	require.Empty(t, config.Validate(cfg))
	d, _ := newDoubleWithoutServer(t, func(c *Config) { *c = cfg })
	d.topics = prometheus.NewRegistry()
	all := publish.New(zap.NewNop(), cfg.publishing(), publish.NewMetrics(d.topics), nil, opener(c))
	d.receiver.topics = all // before the first request
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- all.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
		assert.NoError(t, all.Close(context.Background()))
	})
	synctest.Wait() // the topics that are opened at the start are open
	return d
}

func jobs(names ...string) *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for _, name := range names {
		req.Timeseries = append(req.Timeseries, writetest.OneSeries("__name__", "up", "job", name).Timeseries...)
	}
	return req
}

func TestSeriesGoToTheirTopics(t *testing.T) {
	for _, name := range format.Names() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := publishtest.NewCluster()
				c.Parts = 3
				d := templated(t, c, func(cfg *Config) { cfg.Format = name })
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a", "b", "a", "c/d"))))
				require.Equal(t, http.StatusNoContent, status, text)
				status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a"))), "X-Scope-OrgID", "acme")
				require.Equal(t, http.StatusNoContent, status, text)
				assert.Equal(t, []string{"acme/m-a", "public/m-a", "public/m-b", "public/m-c_d"}, c.Topics())
				if !format.Find(name).ByPartition {
					assert.Len(t, c.Records["persistent://public/public/m-a"], 2)
				}
				assert.InDelta(t, 5, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
			})
		})
	}
}

func TestTenantsThatNoTopicCanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		d := templated(t, c, nil)
		for _, tenant := range []string{"a/b", "a!", "..", "__a", "a-partition-1", "partition-12", strings.Repeat("a", 65)} {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a"))), "X-Scope-OrgID", tenant)
			assert.Equal(t, http.StatusBadRequest, status, tenant)
			assert.Contains(t, text, "X-Scope-OrgID")
		}
		assert.Empty(t, c.Topics())
	})
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
		_, err := topic.Parse(text)
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
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		d := templated(t, c, func(cfg *Config) { cfg.Topics.MaxTopics = 2 })
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a", "b", "c", "a", "d"))))
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Contains(t, text, "2 of 5 series are invalid, the others were written")
		assert.Contains(t, text, "topics.max_topics")
		assert.Equal(t, []string{"public/m-a", "public/m-b"}, c.Topics())
		assert.Len(t, c.Records["persistent://public/public/m-a"], 2)
		assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
		assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("max_topics")), 0)
	})
}

const overflowMetric = "nightingale_topic_overflow_samples_total"

// overflowed is the metric of n samples that went to the overflow topic.
func overflowed(n int) string {
	return fmt.Sprintf(`
# HELP %[1]s Samples of all kinds that went to topics.overflow_topic: topics.max_topics was reached, or their topic did not open or is terminated.
# TYPE %[1]s counter
%[1]s %[2]d
`, overflowMetric, n)
}

func TestTopicsPastTheBoundOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		d := templated(t, c, func(cfg *Config) {
			cfg.Topics.MaxTopics, cfg.Topics.OverflowTopic = 2, "persistent://public/default/rest"
		})
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a", "b", "c"))))
		assert.Equal(t, http.StatusNoContent, status, text)
		assert.Equal(t, []string{"default/rest", "public/m-a"}, c.Topics())
		assert.Len(t, c.Records["persistent://public/default/rest"], 2)
		assert.NoError(t, testutil.GatherAndCompare(d.topics, strings.NewReader(overflowed(2)), overflowMetric))
	})
}

const (
	goodTopic = "persistent://public/public/m-good"
	badTopic  = "persistent://public/public/m-bad"
	restTopic = "persistent://public/default/rest"
)

// TestATopicThatCannotBeOpened refuses its own series, leaves the service up, and is
// tried again.
func TestATopicThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Refuse = map[string]error{badTopic: messaging.ErrTopicTerminated}
		d := templated(t, c, nil)
		for range 2 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good"))))
			assert.Equal(t, http.StatusBadRequest, status, text)
			assert.Contains(t, text, "1 of 2 series are invalid, the others were written")
			assert.Contains(t, text, `job="bad"}: its topic cannot be opened`)
		}
		assert.Equal(t, 1, c.Count(goodTopic))
		assert.NoError(t, d.receiver.topics.Check(t.Context()))
		assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("topic_refused")), 0)

		c.Mu.Lock()
		c.Refuse = nil
		c.Mu.Unlock()
		d.receiver.topics.Sweep(time.Now())
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad"))))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
}

func TestATopicThatCannotBeOpenedOverflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Refuse = map[string]error{badTopic: messaging.ErrTopicTerminated}
		d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = restTopic })
		awaitTopic(t, d.receiver.topics)
		for i := range 2 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good", fmt.Sprint(i)))))
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Equal(t, 2, c.Count(goodTopic))
		assert.Equal(t, 2, c.Count(restTopic))
	})
}

// TestATopicThatIsTerminatedWhileItIsOpen becomes one that cannot be opened: before, its
// requests were answered 503 for ever, and the other series of their senders waited
// behind them.
func TestATopicThatIsTerminatedWhileItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, overflow := range []string{"", restTopic} {
			c := publishtest.NewCluster()
			d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = overflow })
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good"))))
			require.Equal(t, http.StatusNoContent, status, text)

			c.Terminate(badTopic)
			post := func() {
				status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good", "good"))))
			}
			post() // the one that meets it: its sender comes again
			require.Equal(t, http.StatusServiceUnavailable, status, text)
			require.Eventually(t, func() bool {
				post()
				return status != http.StatusServiceUnavailable
			}, await.Patience, time.Millisecond)
			for range 2 {
				post()
				if overflow != "" {
					assert.Equal(t, http.StatusNoContent, status, text)
					continue
				}
				assert.Equal(t, http.StatusBadRequest, status, text)
				assert.Contains(t, text, `job="bad"}: its topic cannot be opened, or was terminated`)
			}
			assert.Equal(t, 3, c.Count(goodTopic), "what is stored is not stored again")
			if overflow != "" {
				assert.Equal(t, 1, c.Count(restTopic))
			}
			assert.NoError(t, d.receiver.topics.Check(t.Context()))

			d.receiver.topics.Sweep(time.Now())
			c.Mu.Lock()
			c.Refuse, c.Broken = nil, nil // it was made again
			c.Mu.Unlock()
			status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad"))))
			assert.Equal(t, http.StatusNoContent, status, text)
			assert.Equal(t, 2, c.Count(badTopic))
		}
	})
}

// TestAStuckTopicKeepsNoOtherFromBeingOpenedAgain: of a body whose other part is stuck a topic
// that has ended is let go.
func TestAStuckTopicKeepsNoOtherFromBeingOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Broken, c.Hold = map[string]error{badTopic: messaging.ErrTopicTerminated}, map[string][]func(){goodTopic: nil}
		d := templated(t, c, nil)
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good"))))
		require.Equal(t, http.StatusServiceUnavailable, status, text)
		c.Mu.Lock()
		c.Broken = nil
		c.Mu.Unlock()
		require.Eventually(t, func() bool {
			d.receiver.topics.Sweep(time.Now())
			status, _, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad"))))
			return status == http.StatusNoContent
		}, await.Patience, time.Millisecond)
		c.Mu.Lock()
		held := c.Hold[goodTopic]
		c.Mu.Unlock()
		require.Len(t, held, 1)
		held[0]()
	})
}

// TestATopicThatOpensLateDoesNotHoldTheOthers: what is stored of a body is not
// published again when the rest comes again.
func TestATopicThatOpensLateDoesNotHoldTheOthers(t *testing.T) {
	for _, name := range format.Names() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := publishtest.NewCluster()
				opening := make(chan struct{})
				c.Opening = map[string]<-chan struct{}{badTopic: opening}
				d := templated(t, c, func(cfg *Config) { cfg.Format, cfg.RequestTimeout = name, time.Second })
				body := writetest.Marshal(t, jobs("bad", "good"))
				for range 3 {
					status, text, header := d.post(t, writetest.Compress(body))
					assert.Equal(t, http.StatusServiceUnavailable, status)
					assert.Contains(t, text, "not open yet")
					assert.NotEmpty(t, header.Get("Retry-After"))
				}
				assert.Equal(t, 1, c.Count(goodTopic))
				close(opening)
				for range 2 {
					require.Eventually(t, func() bool {
						status, _, _ := d.post(t, writetest.Compress(body))
						return status == http.StatusNoContent
					}, await.Patience, time.Millisecond)
				}
				assert.Equal(t, 1, c.Count(goodTopic))
				assert.Equal(t, 1, c.Count(badTopic))
				assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
			})
		})
	}
}

func TestATopicThatOpensLateOverflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Opening = map[string]<-chan struct{}{badTopic: make(chan struct{})}
		d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic, cfg.RequestTimeout = restTopic, 500*time.Millisecond })
		awaitTopic(t, d.receiver.topics)
		for i := range 2 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad", "good", fmt.Sprint(i)))))
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Equal(t, 2, c.Count(goodTopic))
		assert.Equal(t, 2, c.Count(restTopic))
	})
}

// TestOneLateTopicDoesNotMultiplyTheOthers: neither while its attempt is under way,
// nor when it is refused at once because the topic is unavailable.
func TestOneLateTopicDoesNotMultiplyTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Hold = map[string][]func(){badTopic: nil}
		d := templated(t, c, func(cfg *Config) { cfg.RequestTimeout = 50 * time.Millisecond })
		for _, names := range [][]string{{"good", "bad"}, {"bad", "good"}} {
			body := writetest.Marshal(t, jobs(names...))
			for range 5 {
				status, text, _ := d.post(t, writetest.Compress(body))
				assert.Equal(t, http.StatusServiceUnavailable, status, text)
			}
		}
		assert.Equal(t, 2, c.Count(goodTopic), "two bodies")
		assert.Equal(t, 1, c.Count(badTopic), "one before it was unavailable")
		c.Mu.Lock()
		held := c.Hold[badTopic]
		c.Mu.Unlock()
		for _, done := range held {
			done()
		}
	})
}

// TestWhatCannotBeStoredIsToldInTheEnd: a part that is too large is final for it, and
// the sender hears of it when the other parts are stored.
func TestWhatCannotBeStoredIsToldInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := templated(t, publishtest.NewCluster(), nil)
		var published []string
		unavailable := true
		d.receiver.topics.Divert(func(_ context.Context, topic string, _ []messaging.Record) (bool, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			published = append(published, topic)
			switch {
			case topic == goodTopic:
				return true, publish.TooLarge{0}
			case unavailable:
				return true, refusal.Unavailable("pulsar_unavailable", refusal.RetryUnavailable, "unavailable")
			default:
				return true, nil
			}
		})
		body := writetest.Marshal(t, jobs("bad", "good"))
		status, _, _ := d.post(t, writetest.Compress(body))
		assert.Equal(t, http.StatusServiceUnavailable, status)
		d.mu.Lock()
		unavailable = false
		d.mu.Unlock()
		for range 2 {
			status, _, _ = d.post(t, writetest.Compress(body))
			assert.Equal(t, http.StatusBadRequest, status)
		}
		slices.Sort(published)
		assert.Equal(t, []string{badTopic, badTopic, goodTopic}, published)
	})
}

func TestATopicThatDoesNotOpenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Opening = map[string]<-chan struct{}{"persistent://public/public/m-slow": make(chan struct{})}
		d := templated(t, c, nil)
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("slow"))))
		assert.Equal(t, http.StatusServiceUnavailable, status)
		assert.Contains(t, text, "not open yet")
	})
}

// TestTopicsShareOneBound: a stuck topic may not take memory without end.
func TestTopicsShareOneBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		stuck := "persistent://public/public/m-stuck"
		c.Hold = map[string][]func(){stuck: nil}
		d := templated(t, c, func(cfg *Config) { cfg.Profile.MaxPendingBytes = 600 })
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("stuck", "stuck", "stuck", "stuck"))))
		assert.Equal(t, http.StatusServiceUnavailable, status, text)
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, jobs("other"))))
		assert.Equal(t, http.StatusNoContent, status, "there is room for others: %s", text)
		c.Mu.Lock()
		assert.Len(t, c.Records[stuck], 2, "as many as there is room for")
		held := c.Hold[stuck]
		delete(c.Hold, stuck)
		c.Mu.Unlock()
		for _, done := range held {
			done()
		}
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a", "b", "c", "d"))))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
}

// TestAStuckTopicHoldsItsOwnMessagesOnly: not those of the same bodies that others have
// stored.
func TestAStuckTopicHoldsItsOwnMessagesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Hold = map[string][]func(){badTopic: nil}
		d := templated(t, c, nil)
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs(append(slices.Repeat([]string{"good"}, 1000), "bad")...))))
		assert.Equal(t, http.StatusServiceUnavailable, status, text)
		budget := d.receiver.budget
		require.Eventually(t, func() bool { return budget.Used() < 64<<10 }, await.Patience, time.Millisecond)
		assert.Positive(t, budget.Used())
		c.Mu.Lock()
		held := c.Hold[badTopic]
		c.Mu.Unlock()
		for _, done := range held {
			done()
		}
		require.Eventually(t, func() bool { return budget.Used() == 0 }, await.Patience, time.Millisecond)
	})
}

// TestTheTopicOfTheConfigurationIsTakenAsItIs: what is changed in names that senders
// choose is an operator's own choice.
func TestTheTopicOfTheConfigurationIsTakenAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, topic := range []string{"persistent://public/default/m-partition-3", "persistent://public/default/__m"} {
			c := publishtest.NewCluster()
			d := templated(t, c, func(cfg *Config) { cfg.Topic = topic })
			awaitTopic(t, d.receiver.topics)
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("a"))))
			require.Equal(t, http.StatusNoContent, status, text)
			assert.Equal(t, 1, c.Count(topic))
			assert.Equal(t, map[string]int{topic: 1}, c.Opens)
		}
	})
}

// TestARepetitionOverflowsOnce: the part of the overflow topic is stored, and not published again.
func TestARepetitionOverflowsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := templated(t, publishtest.NewCluster(), func(cfg *Config) {
			cfg.Topics.MaxTopics, cfg.Topics.OverflowTopic = 2, restTopic
		})
		unavailable := true
		d.receiver.topics.Divert(func(_ context.Context, topic string, _ []messaging.Record) (bool, error) {
			if topic == goodTopic && unavailable {
				unavailable = false
				return true, refusal.Unavailable("publish", refusal.RetryUnavailable, "unavailable")
			}
			return true, nil
		})
		for _, expected := range []int{http.StatusServiceUnavailable, http.StatusNoContent} {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("good", "bad"))))
			require.Equal(t, expected, status, text)
			assert.NoError(t, testutil.GatherAndCompare(d.topics, strings.NewReader(overflowed(1)), overflowMetric))
		}
	})
}

// TestWhatOverflowedIsNotTakenForStored: the overflow topic has a part of a body, and
// when the body comes again other series of it go there, too.
func TestWhatOverflowedIsNotTakenForStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		c.Opening = map[string]<-chan struct{}{badTopic: make(chan struct{})}
		d := templated(t, c, func(cfg *Config) { cfg.Topics.OverflowTopic = restTopic })
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, jobs("bad"))))
		require.Equal(t, http.StatusNoContent, status, text)
		require.Equal(t, 1, c.Count(restTopic), "it does not open")

		c.Terminate(goodTopic)
		c.Refuse = nil // it is open when it is terminated
		body := writetest.Marshal(t, jobs("bad", "good"))
		status, text, _ = d.post(t, writetest.Compress(body))
		require.Equal(t, http.StatusServiceUnavailable, status, text)
		require.Equal(t, 2, c.Count(restTopic), "of the bad topic")
		c.Terminate(goodTopic)
		require.Eventually(t, func() bool { // the topic may not have ended
			status, _, _ := d.post(t, writetest.Compress(body))
			return status == http.StatusNoContent
		}, await.Patience, time.Millisecond)
		c.Mu.Lock()
		defer c.Mu.Unlock()
		assert.Contains(t, strings.Join(c.Records[restTopic], ""), `"job":"good"`)
	})
}
