package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/history"
	"github.com/aviaryhq/aviary/test/stack"
)

// What consumers do on the real broker. consumer_fault_test.go breaks it.

// consumed collects deliveries.
type consumed struct {
	mu  sync.Mutex
	all []messaging.Delivery
}

func (c *consumed) add(d *messaging.Delivery) {
	c.mu.Lock()
	c.all = append(c.all, *d)
	c.mu.Unlock()
}

func (c *consumed) snapshot() []messaging.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]messaging.Delivery(nil), c.all...)
}

// distinct is the number of different payloads.
func (c *consumed) distinct() int {
	seen := make(map[string]bool)
	for _, d := range c.snapshot() {
		seen[string(d.Payload)] = true
	}
	return len(seen)
}

// running is a consumer inside Run.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

// start runs a consumer until stop is called or the test ends.
func start(t *testing.T, client *messaging.Client, cfg messaging.ConsumerConfig, h messaging.Handler) *running {
	t.Helper()
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- c.Run(ctx, h) }()
	t.Cleanup(func() { cancel() })
	return r
}

func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
	case <-time.After(await.Patience):
		t.Fatal("Run did not return")
	}
}

// publish publishes n records of 7 keys, acknowledged when it returns.
func publish(t *testing.T, client *messaging.Client, topic string, n int, batched bool) {
	t.Helper()
	p := open(t, client, topic, func(p *messaging.Profile) {
		if !batched {
			p.BatchRecords = 1
		}
	})
	rs := make([]*messaging.Record, n)
	for i := range rs {
		rs[i] = record(i)
	}
	require.NoError(t, p.Publish(testContext(t), rs...))
	require.NoError(t, p.Close(testContext(t)))
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, await.Patience, 5*time.Millisecond, what)
}

func consumerConfig(topic string, kind messaging.SubscriptionType) messaging.ConsumerConfig {
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription, cfg.Type = []string{topic}, "sub", kind
	cfg.Retry.MinDelay, cfg.Retry.MaxDelay = 10*time.Millisecond, 50*time.Millisecond
	return cfg
}

var allTypes = []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.Shared, messaging.KeyShared}

func TestRunHandlesAndAcknowledgesEverything(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, kind := range allTypes {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, 3)
			publish(t, client, topic, 700, kind != messaging.KeyShared)
			var got consumed
			r := start(t, client, consumerConfig(topic, kind), func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				return nil
			})
			eventually(t, "all are handled", func() bool { return got.distinct() == 700 })
			r.stop(t)
			require.Len(t, got.snapshot(), 700, "each once")
			require.Zero(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog, "acknowledged when Run returns")
			require.Empty(t, srv.Stats(t, topic).Subscriptions["sub"].Consumers)
			if kind != messaging.Shared {
				requireInOrderOfKeys(t, got.snapshot())
			}
		})
	}
}

// The underlying client sends the acknowledgements that it has gathered at the beat of a timer, and
// may close ahead of what the timer has just taken.
func TestLastAcknowledgementsAreSentBeforeRunReturns(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for range 10 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			const partitions, messages = 4, 400
			topic := srv.Topic(t, ns, partitions)
			publish(t, client, topic, messages, false)
			var got atomic.Int32
			cfg := consumerConfig(topic, messaging.Shared)
			cfg.AckEvery = time.Millisecond // the timer fires often
			all := make(chan struct{})
			r := start(t, client, cfg, func(context.Context, *messaging.Delivery) error {
				if got.Add(1) == messages {
					close(all)
				}
				return nil
			})
			<-all
			r.stop(t)
			require.Zero(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog)
		})
	}
}

// requireInOrderOfKeys checks that of each key all were handled in order, and what was handled
// again was followed by all behind it.
func requireInOrderOfKeys(t *testing.T, ds []messaging.Delivery) {
	t.Helper()
	handled := make(map[string][]int)
	newest := make(map[string]int)
	for _, d := range ds {
		i, err := strconv.Atoi(string(d.Payload))
		require.NoError(t, err)
		handled[d.Key] = append(handled[d.Key], i/7)
		newest[d.Key] = max(newest[d.Key], i/7)
	}
	for key, seen := range handled {
		require.NoError(t, history.InOrder(seen, newest[key]+1), "key %s", key)
	}
}

// A consumer that leaves with messages prefetched, in flight and held must not
// keep any of them from the next one.
func TestNothingIsPinnedAfterRun(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, kind := range allTypes {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, 0)
			publish(t, client, topic, 500, false)
			cfg := consumerConfig(topic, kind)
			cfg.Retry.InPlace, cfg.Retry.MinDelay, cfg.Retry.MaxDelay = true, time.Hour, time.Hour
			var first, second consumed
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if len(d.Payload) == 2 { // 10 to 99 are held
					return errors.New("later")
				}
				first.add(d)
				return nil
			})
			// Failing keys keep what is behind them; the first of each is done.
			eventually(t, "some are handled", func() bool { return len(first.snapshot()) >= 7 })
			r.stop(t)
			// What a consumer has that the broker takes for connected comes to no other one.
			require.Empty(t, srv.Stats(t, topic).Subscriptions["sub"].Consumers)
			r = start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				second.add(d)
				return nil
			})
			rest := 500 - len(first.snapshot())
			eventually(t, "the rest is handled", func() bool { return second.distinct() == rest })
			r.stop(t)
			require.Len(t, second.snapshot(), rest, "what was handled is not delivered again")
		})
	}
}

func TestHandlerInFlightMayFinish(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	topic := srv.Topic(t, srv.Namespace(t), 0)
	publish(t, client, topic, 20, false)
	cfg := consumerConfig(topic, messaging.Exclusive)
	cfg.Order = messaging.OrderTotal
	entered, release := make(chan struct{}), make(chan struct{})
	var after error
	var calls atomic.Int32
	r := start(t, client, cfg, func(ctx context.Context, _ *messaging.Delivery) error {
		calls.Add(1)
		close(entered)
		<-release
		after = ctx.Err()
		return nil
	})
	<-entered
	r.cancel()
	select {
	case <-r.ended:
		t.Fatal("Run returned before its handler")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	r.stop(t)
	require.NoError(t, after, "the handler's context goes on")
	require.EqualValues(t, 1, calls.Load(), "nothing starts after the end")
	require.EqualValues(t, 19, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog)
}

func TestStopTimeoutEndsHandlers(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	topic := srv.Topic(t, srv.Namespace(t), 0)
	publish(t, client, topic, 1, false)
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.StopTimeout = 50 * time.Millisecond
	entered := make(chan struct{})
	r := start(t, client, cfg, func(ctx context.Context, _ *messaging.Delivery) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	})
	<-entered
	r.stop(t)
	require.EqualValues(t, 1, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog, "unfinished, so not acknowledged")
}

// A key whose message fails is held, in its order; other keys go on.
func TestHeldKeyLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, 0)
			publish(t, client, topic, 140, false)
			var got consumed
			var open atomic.Bool
			cfg := consumerConfig(topic, kind)
			cfg.Retry.MaxAttempts = 0
			cfg.Concurrency = 2
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if d.Key == "k3" && !open.Load() {
					return errors.New("not yet")
				}
				got.add(d)
				return nil
			})
			eventually(t, "the other keys are done", func() bool { return got.distinct() == 120 })
			open.Store(true)
			eventually(t, "all are done", func() bool { return got.distinct() == 140 })
			r.stop(t)
			requireInOrderOfKeys(t, got.snapshot())
			for _, d := range got.snapshot() {
				if string(d.Payload) == "3" {
					require.Greater(t, d.Attempt, 1)
					require.False(t, d.FirstFailed.IsZero())
				}
			}
		})
	}
}

func TestTotalOrderHoldsEverything(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	topic := srv.Topic(t, srv.Namespace(t), 0)
	publish(t, client, topic, 100, true)
	cfg := consumerConfig(topic, messaging.Exclusive)
	cfg.Order = messaging.OrderTotal
	var got []string
	failures := 0
	var n atomic.Int64
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		if string(d.Payload) == "41" && d.Attempt < 4 {
			failures++
			return errors.New("again")
		}
		got = append(got, string(d.Payload))
		n.Add(1)
		return nil
	})
	eventually(t, "all", func() bool { return n.Load() == 100 })
	r.stop(t)
	require.Equal(t, 3, failures)
	requireInOrder(t, got, 100)
}

// Attempts survive a restart, because they wait on the retry topic.
func TestRetryTopicSurvivesRestart(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	topic, retries := srv.Topic(t, ns, 0), srv.Topic(t, ns, 0)
	p := open(t, client, topic, nil)
	at := time.UnixMilli(1_700_000_000_000)
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{
		Key: "k", Payload: []byte("body"), Properties: map[string]string{"a": "b"}, EventTime: at,
	}))
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.Retry.Topic = retries
	var first, second consumed
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		first.add(d)
		return messaging.RetryAfter(errors.New("later"), 500*time.Millisecond)
	})
	eventually(t, "the copy is stored, the original acknowledged", func() bool {
		return srv.Stats(t, retries).Subscriptions["sub"].MsgBacklog == 1 &&
			srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog == 0
	})
	r.stop(t)
	r = start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		second.add(d)
		return nil
	})
	eventually(t, "handled", func() bool { return len(second.snapshot()) == 1 })
	r.stop(t)
	was, d := first.snapshot()[0], second.snapshot()[0]
	require.Equal(t, 1, was.Attempt)
	require.Equal(t, len(first.snapshot())+1, d.Attempt)
	require.False(t, d.FirstFailed.IsZero())
	require.Equal(t, map[string]string{"a": "b"}, d.Properties, "ours are taken out")
	require.Equal(t, "k", d.Key)
	require.Equal(t, "body", string(d.Payload))
	require.True(t, at.Equal(d.EventTime))
	require.Equal(t, was.Topic, d.Topic)
	require.Equal(t, was.ID.Bytes(), d.ID.Bytes(), "the original's id")
	require.True(t, was.PublishTime.Equal(d.PublishTime))
	require.Equal(t, was.ProducerName, d.ProducerName)
	require.Zero(t, srv.Stats(t, retries).Subscriptions["sub"].MsgBacklog)
}

func TestRejectedAndExhaustedAreDeadLetters(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	reg := prometheus.NewRegistry()
	client := dial(t, srv.URL(), messaging.WithRegisterer(reg))
	ns := srv.Namespace(t)
	for _, kind := range []messaging.SubscriptionType{messaging.Shared, messaging.Failover} {
		t.Run(string(kind), func(t *testing.T) {
			topic := srv.Topic(t, ns, 0)
			p := open(t, client, topic, nil)
			for _, body := range []string{"bad", "flaky", "panics", "good"} {
				require.NoError(t, p.Publish(testContext(t), &messaging.Record{
					Key: body, Payload: []byte(body), Properties: map[string]string{"a": "b"},
				}))
			}
			cfg := consumerConfig(topic, kind)
			cfg.Subscription = "sub-" + string(kind)
			cfg.Retry.MaxAttempts = 3
			var good atomic.Int32
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				switch string(d.Payload) {
				case "bad":
					return messaging.Reject(errors.New("never"))
				case "flaky":
					return errors.New("always")
				case "panics":
					panic("boom")
				}
				good.Add(1)
				return nil
			})
			dlq := cfg
			dlq.Topics, dlq.Type, dlq.Retry = []string{topic + "-" + cfg.Subscription + "-DLQ"}, messaging.Shared, messaging.Retry{MinDelay: 1, MaxDelay: 1, InPlace: true}
			eventually(t, "all have their verdict", func() bool {
				return counted(t, reg, "aviary_messaging_handled_messages_total", cfg.Subscription, "dead_letter") == 3
			})
			r.stop(t)
			require.EqualValues(t, 1, good.Load())
			require.Zero(t, srv.Stats(t, topic).Subscriptions[cfg.Subscription].MsgBacklog)
			require.Equal(t, 3, counted(t, reg, "aviary_messaging_handled_messages_total", cfg.Subscription, "panic"))

			// The consumer made a subscription that keeps them.
			var dead consumed
			c, err := client.Consumer(dlq)
			require.NoError(t, err)
			n, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
				dead.add(d)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 3, n)
			want := map[string][2]string{
				"bad": {"1", "never"}, "flaky": {"3", "gave up after 3 attempts: always"},
				"panics": {"3", "gave up after 3 attempts: handler panicked: boom"},
			}
			for _, d := range dead.snapshot() {
				w := want[string(d.Payload)]
				require.Equal(t, w[0], d.Properties[messaging.PropertyAttempts])
				require.Equal(t, w[1], d.Properties[messaging.PropertyReason])
				require.Equal(t, topic, d.Properties[messaging.PropertyOriginTopic])
				require.Equal(t, "b", d.Properties["a"])
				require.Equal(t, string(d.Payload), d.Key)
				_, err := time.Parse(time.RFC3339Nano, d.Properties[messaging.PropertyFirstFailedAt])
				require.NoError(t, err)
			}
		})
	}
}

// counted is the value of one counter, or gauge, of a registry, by its name and label values.
func counted(t *testing.T, reg *prometheus.Registry, name string, labels ...string) int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	value := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && strings.Join(sorted(have), " ") == strings.Join(sorted(labels), " ") {
				value = int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
	}
	return value
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}

func TestDrain(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	topic := srv.Topic(t, srv.Namespace(t), 3)
	publish(t, client, topic, 300, true)
	cfg := consumerConfig(topic, messaging.Failover)
	c, err := client.Consumer(cfg)
	require.NoError(t, err)

	// While it drains, more arrives: that is not part of the backlog.
	p := open(t, client, topic, nil)
	var once sync.Once
	var got consumed
	n, err := c.Drain(testContext(t), func(ctx context.Context, d *messaging.Delivery) error {
		once.Do(func() {
			for i := range 50 {
				if err := p.Publish(ctx, record(1000+i)); err != nil {
					t.Error(err)
				}
			}
		})
		if string(d.Payload) == "5" && d.Attempt == 1 {
			return errors.New("held, and drained nevertheless")
		}
		got.add(d)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 300, n)
	require.Equal(t, 300, got.distinct())
	require.EqualValues(t, 50, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog)

	n, err = c.Drain(testContext(t), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, err)
	require.Equal(t, 50, n)

	n, err = c.Drain(testContext(t), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, err)
	require.Zero(t, n, "acknowledged before: nothing is delivered")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Drain(ctx, func(context.Context, *messaging.Delivery) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestPatternAndSeveralTopics(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	topics := []string{"persistent://" + ns + "/in-a", "persistent://" + ns + "/in-b"}
	for i, topic := range topics {
		p := open(t, client, topic, nil)
		for j := range 100 {
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: fmt.Appendf(nil, "%d-%d", i, j)}))
		}
	}
	for name, set := range map[string]func(*messaging.ConsumerConfig){
		"topics":  func(c *messaging.ConsumerConfig) { c.Topics = topics },
		"pattern": func(c *messaging.ConsumerConfig) { c.Topics, c.Pattern = nil, "persistent://"+ns+"/in-.*" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := consumerConfig("", messaging.Shared)
			set(&cfg)
			cfg.Subscription = name
			cfg.DiscoverEvery = 200 * time.Millisecond
			cfg.Retry.Topic = "persistent://" + ns + "/retry-" + name
			cfg.Retry.DeadLetterTopic = "persistent://" + ns + "/dead-" + name
			var got consumed
			r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
				if d.Attempt == 1 && strings.HasSuffix(string(d.Payload), "-7") {
					return errors.New("once")
				}
				got.add(d)
				return nil
			})
			eventually(t, "all", func() bool { return got.distinct() == 200 })
			if name == "pattern" {
				p := open(t, client, "persistent://"+ns+"/in-late", nil)
				require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("late")}))
				eventually(t, "a topic that appears later", func() bool { return got.distinct() == 201 })
			}
			r.stop(t)
		})
	}
}

func TestDeliveryIsWhole(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	topic := srv.Topic(t, srv.Namespace(t), 0)
	p := open(t, client, topic, nil)
	at := time.UnixMilli(1_600_000_000_123)
	require.NoError(t, p.Publish(testContext(t),
		&messaging.Record{Key: "k", Payload: []byte("v"), Properties: map[string]string{"a": "b"}, EventTime: at},
		&messaging.Record{Key: "gone"},
		&messaging.Record{Payload: []byte{}},
	))
	c, err := client.Consumer(consumerConfig(topic, messaging.Exclusive))
	require.NoError(t, err)
	var got consumed
	n, err := c.Drain(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for _, d := range got.snapshot() {
		require.Equal(t, topic, d.Topic)
		require.Zero(t, d.Partition)
		require.False(t, d.ID.IsZero())
		require.WithinDuration(t, time.Now(), d.PublishTime, time.Minute)
		require.NotEmpty(t, d.ProducerName)
		require.Equal(t, 1, d.Attempt)
		require.Zero(t, d.RedeliveryCount)
		switch d.Key {
		case "k":
			require.Equal(t, "v", string(d.Payload))
			require.Equal(t, map[string]string{"a": "b"}, d.Properties)
			require.True(t, at.Equal(d.EventTime))
		case "gone":
			require.Nil(t, d.Payload, "a null value")
			require.True(t, d.EventTime.IsZero())
		default:
			require.NotNil(t, d.Payload)
			require.Empty(t, d.Payload)
		}
	}
}

func TestRunRefusals(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	topic := srv.Topic(t, ns, 0)
	client := dial(t, srv.URL())
	nothing := func(context.Context, *messaging.Delivery) error { return nil }

	publish(t, client, topic, 1, false)
	entered := make(chan struct{})
	c, err := client.Consumer(consumerConfig(topic, messaging.Shared))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(context.Context, *messaging.Delivery) error { close(entered); return nil })
	}()
	<-entered
	require.ErrorIs(t, c.Run(ctx, nothing), messaging.ErrRunning)
	_, err = c.Drain(ctx, nothing)
	require.ErrorIs(t, err, messaging.ErrRunning)

	other, err := client.Consumer(consumerConfig(topic, messaging.Failover))
	require.NoError(t, err)
	require.ErrorContains(t, other.Run(ctx, nothing), "different type", "at once, without retries")
	cancel()
	require.NoError(t, <-ended)
	again, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, c.Run(again, nothing), "again after it returned")

	go func() { ended <- c.Run(context.Background(), nothing) }()
	eventually(t, "subscribed", func() bool { return len(srv.Stats(t, topic).Subscriptions["sub"].Consumers) == 1 })
	require.NoError(t, client.Close(testContext(t)))
	require.ErrorIs(t, <-ended, messaging.ErrClosed)
	require.ErrorIs(t, c.Run(context.Background(), nothing), messaging.ErrClosed)
}
