package pulsar

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// testContext lasts for all that a test does.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// running is a Run under way.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

func start(t *testing.T, run func(context.Context) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- run(ctx) }()
	t.Cleanup(cancel)
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

func startSink(t *testing.T, url string, change func(*SinkConfig)) (*Sink, *running) {
	t.Helper()
	cfg := DefaultSinkConfig()
	cfg.URL = url
	if change != nil {
		change(&cfg)
	}
	s := cfg.NewSink(connector.Options{}).(*Sink)
	return s, start(t, s.Run)
}

// pipelinesTo makes the pipelines of a route to one topic.
func pipelinesTo(sink pipeline.Sink, to string) *pipeline.Set {
	return pipeline.NewSet(pipeline.Config{
		Messages: 50_000, Bytes: 64 << 20, CommitEvery: 20 * time.Millisecond, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	}, pipeline.Route{
		Sink: sink,
		Prepare: func() (pipeline.Prepare, func()) {
			return func(context.Context, *message.Message) (string, bool, error) { return to, true, nil }, nil
		},
		Stop:   func(error) {},
		Report: func(error) {},
		Log:    zap.NewNop(), Metrics: pipeline.NewMetrics(prometheus.NewRegistry()).Route("test"),
	})
}

func startSource(t *testing.T, url string, pipelines *pipeline.Set, change func(*SourceConfig)) *running {
	t.Helper()
	cfg := DefaultSourceConfig()
	cfg.URL, cfg.Subscription = url, "bridge"
	change(&cfg)
	s := cfg.NewSource(connector.Options{}).(*Source)
	return start(t, func(ctx context.Context) error { return s.Run(ctx, pipelines) })
}

// send sends one message and waits for its outcome.
func send(t *testing.T, s *Sink, to string, m *message.Message) error {
	t.Helper()
	outcome := make(chan error, 1)
	s.Send(testContext(t), to, m, func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-time.After(await.Patience):
		t.Fatal("no outcome")
		return nil
	}
}

func dial(t *testing.T, cfg messaging.Config) *messaging.Client {
	t.Helper()
	c, err := messaging.Dial(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	return c
}

// read returns all that a topic holds, each partition in its order.
func read(t *testing.T, client *messaging.Client, topic string) []messaging.Delivery {
	t.Helper()
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription, cfg.Type, cfg.Order = []string{topic}, fmt.Sprintf("reader-%d", time.Now().UnixNano()), messaging.Exclusive, messaging.OrderTotal
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	var all []messaging.Delivery
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	_, err = c.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		all = append(all, *d)
		return nil
	})
	require.NoError(t, err)
	return all
}

// publish publishes n messages of 7 keys: value i has key i%7.
func publish(t *testing.T, client *messaging.Client, topic string, from, n int, batched bool) {
	t.Helper()
	profile := messaging.Ops()
	if !batched {
		profile.BatchRecords = 1
	}
	p, err := client.Publisher(testContext(t), topic, profile)
	require.NoError(t, err)
	rs := make([]*messaging.Record, n)
	for i := range rs {
		rs[i] = &messaging.Record{
			Key: "k" + strconv.Itoa((from+i)%7), OrderingKey: "o" + strconv.Itoa((from+i)%7), Payload: []byte(strconv.Itoa(from + i)),
			Properties: map[string]string{"n": strconv.Itoa(from + i)}, EventTime: time.UnixMilli(1_700_000_000_000 + int64(from+i)),
		}
	}
	require.NoError(t, p.Publish(testContext(t), rs...))
	require.NoError(t, p.Close(testContext(t)))
}

// requireEach checks that the values are those from 0 to n-1, each of them once, and
// each key's in order.
func requireEach(t *testing.T, ds []messaging.Delivery, n int, ordered bool) {
	t.Helper()
	seen := make(map[int]bool)
	last := make(map[string]int)
	for _, d := range ds {
		i, err := strconv.Atoi(string(d.Payload))
		require.NoError(t, err)
		require.False(t, seen[i], "%d twice", i)
		seen[i] = true
		if before, ok := last[d.Key]; ok && ordered {
			require.Greater(t, i, before, "key %s", d.Key)
		}
		last[d.Key] = i
	}
	require.Len(t, seen, n)
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, await.Patience, 5*time.Millisecond, what)
}

func TestEveryKindOfSubscriptionArrivesWhole(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	ns := srv.Namespace(t)
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.Shared, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			from, to := srv.Topic(t, ns, 3), srv.Topic(t, ns, 2)
			const n = 2000
			publish(t, client, from, 0, n, kind != messaging.KeyShared)
			sink, sinking := startSink(t, srv.URL(), nil)
			pipelines := pipelinesTo(sink, to)
			source := startSource(t, srv.URL(), pipelines, func(c *SourceConfig) { c.Topics, c.Type = []string{from}, kind })
			waitFor(t, "all are stored", func() bool { return pipelines.State().Stored >= n })
			waitFor(t, "all are acknowledged", func() bool { return srv.Stats(t, from).Subscriptions["bridge"].MsgBacklog == 0 })
			source.stop(t)
			sinking.stop(t)
			require.EqualValues(t, n, pipelines.State().Stored, "each once")
			got := read(t, client, to)
			requireEach(t, got, n, kind != messaging.Shared)
			for _, d := range got {
				i, _ := strconv.Atoi(string(d.Payload))
				require.Equal(t, strconv.Itoa(i), d.Properties["n"])
				require.Equal(t, "o"+strconv.Itoa(i%7), d.OrderingKey)
				require.EqualValues(t, 1_700_000_000_000+i, d.EventTime.UnixMilli())
				at, ok := message.ParseOrigin(d.Properties[message.EntryOrigin])
				require.True(t, ok)
				require.Equal(t, message.Origin{
					System: "pulsar", Cluster: "pulsar", Topic: from, Partition: at.Partition, Offset: -1, ID: at.ID,
				}, at)
				require.NotEmpty(t, at.ID)
				require.GreaterOrEqual(t, at.Partition, int32(0))
			}
		})
	}
}

func TestPatternFindsItsTopics(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	ns := srv.Namespace(t)
	base := "persistent://" + ns + "/in-"
	publish(t, client, base+"a", 0, 50, true)
	publish(t, client, base+"b", 50, 50, true)
	sink, sinking := startSink(t, srv.URL(), nil)
	to := srv.Topic(t, ns, 0)
	pipelines := pipelinesTo(sink, to)
	source := startSource(t, srv.URL(), pipelines, func(c *SourceConfig) { c.Pattern, c.DiscoverEvery = base+".*", 200*time.Millisecond })
	waitFor(t, "two topics", func() bool { return pipelines.State().Stored >= 100 })
	publish(t, client, base+"c", 100, 50, true)
	waitFor(t, "one more", func() bool { return pipelines.State().Stored >= 150 })
	source.stop(t)
	sinking.stop(t)
	requireEach(t, read(t, client, to), 150, false)
}

func TestMessagesAreMapped(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	topic := srv.Topic(t, srv.Namespace(t), 3)
	sink, sinking := startSink(t, srv.URL(), func(c *SinkConfig) { c.Partition = partitionSource })
	at := time.UnixMilli(1_700_000_000_123)
	require.NoError(t, send(t, sink, topic, &message.Message{
		Key: []byte("k"), Value: []byte("v"), Time: at, Headers: []message.Header{{Name: "h", Value: []byte("1")}, {Name: "h", Value: []byte("2")}},
		From: message.From{Partition: 2},
	}))
	require.NoError(t, send(t, sink, topic, &message.Message{Key: []byte("gone"), From: message.From{Partition: 1}}))
	require.NoError(t, send(t, sink, topic, &message.Message{Value: []byte{}, Time: time.UnixMilli(-5), From: message.From{Partition: 0}}))
	err := send(t, sink, topic, &message.Message{Value: []byte("v"), From: message.From{Partition: 3}})
	reason, _ := pipeline.Refused(err)
	require.Equal(t, "no_partition", reason, err)
	err = send(t, sink, topic, &message.Message{Value: []byte("v"), From: message.From{Partition: -1}})
	reason, _ = pipeline.Refused(err)
	require.Equal(t, "no_partition", reason, err)
	err = send(t, sink, topic, &message.Message{Value: []byte(strings.Repeat("x", 6<<20))})
	reason, _ = pipeline.Refused(err)
	require.Equal(t, "too_large", reason)
	err = send(t, sink, "a://b", &message.Message{})
	reason, _ = pipeline.Refused(err)
	require.Equal(t, "bad_topic", reason)
	sinking.stop(t)
	require.ErrorIs(t, send(t, sink, topic, &message.Message{}), errStopped)

	got := read(t, client, topic)
	require.Len(t, got, 3)
	for _, d := range got {
		m := message.FromPulsar(d.Key, d.Payload, d.Properties, d.EventTime)
		switch d.Partition {
		case 2:
			require.Equal(t, at, d.EventTime)
			require.Equal(t, []byte("k"), m.Key)
			require.Equal(t, []message.Header{{Name: "h", Value: []byte("1")}, {Name: "h", Value: []byte("2")}}, m.Headers)
		case 1:
			require.Nil(t, m.Value)
		default:
			require.NotNil(t, m.Value)
			require.Empty(t, m.Value)
			require.Nil(t, m.Key)
		}
	}
}

// TestTopicsAreOpenedAndClosed uses more destinations than may be open.
func TestTopicsAreOpenedAndClosed(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	sink, sinking := startSink(t, srv.URL(), func(c *SinkConfig) { c.MaxTopics, c.IdleTimeout = 2, time.Second })
	for i := range 5 {
		require.NoError(t, send(t, sink, fmt.Sprintf("persistent://%s/t%d", ns, i), &message.Message{Value: []byte("v")}))
		sink.mu.RLock()
		require.LessOrEqual(t, len(sink.destinations), 2)
		sink.mu.RUnlock()
	}
	waitFor(t, "idle ones are closed", func() bool {
		sink.mu.RLock()
		defer sink.mu.RUnlock()
		return len(sink.destinations) == 0
	})
	require.NoError(t, send(t, sink, "persistent://"+ns+"/t0", &message.Message{Value: []byte("v")}))
	sinking.stop(t)
}

// holding is a sink that stores nothing until it is told to.
type holding struct {
	mu    sync.Mutex
	calls []call
}

type call struct {
	value string
	done  func(error)
}

func (h *holding) Send(_ context.Context, _ string, m *message.Message, done func(error)) {
	h.mu.Lock()
	h.calls = append(h.calls, call{string(m.Value), done})
	h.mu.Unlock()
}

func (h *holding) all() []call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]call(nil), h.calls...)
}

// What was not stored when the source ends, however it ends, is delivered again; what
// was stored up to the watermark is not.
func TestRestartBeginsAtTheWatermark(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	topic := srv.Topic(t, srv.Namespace(t), 0)
	publish(t, client, topic, 0, 300, false) // an entry each: acknowledged one by one
	var h holding
	pipelines := pipelinesTo(&h, "to")
	settings := func(c *SourceConfig) {
		c.Topics, c.Type, c.DrainTimeout, c.AckEvery = []string{topic}, messaging.Exclusive, 100*time.Millisecond, 10*time.Millisecond
	}
	source := startSource(t, srv.URL(), pipelines, settings)
	waitFor(t, "all are under way", func() bool { return len(h.all()) == 300 })
	for i, c := range h.all() {
		require.Equal(t, strconv.Itoa(i), c.value)
		if i < 100 || i == 200 { // the watermark is at 100: 200 has a gap before it
			c.done(nil)
		}
	}
	waitFor(t, "acknowledged", func() bool { return srv.Stats(t, topic).Subscriptions["bridge"].MsgBacklog == 200 })
	// The session ends, as a broker ends it: what is in the pipelines is not sent twice.
	srv.Unload(t, topic)
	require.Never(t, func() bool { return len(h.all()) > 300 }, time.Second, 50*time.Millisecond)
	for _, c := range h.all()[100:150] {
		c.done(nil)
	}
	waitFor(t, "acknowledged after the reconnect", func() bool { return srv.Stats(t, topic).Subscriptions["bridge"].MsgBacklog == 150 })
	source.stop(t)

	var next holding
	pipelines = pipelinesTo(&next, "to")
	source = startSource(t, srv.URL(), pipelines, settings)
	waitFor(t, "the rest", func() bool { return len(next.all()) == 150 })
	for i, c := range next.all() {
		require.Equal(t, strconv.Itoa(150+i), c.value)
		c.done(nil)
	}
	waitFor(t, "acknowledged", func() bool { return srv.Stats(t, topic).Subscriptions["bridge"].MsgBacklog == 0 })
	source.stop(t)
	require.Len(t, next.all(), 150)
}
