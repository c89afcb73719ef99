package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) {
	// The metrics of plain clients never stop counting. Source and sink have none.
	leak.Main(m.Run, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// shelf is a sink in memory.
type shelf struct {
	mu   sync.Mutex
	kept []*message.Message
	held []func(error) // outcomes that are withheld
	hold func(*message.Message) bool
}

func (s *shelf) Send(_ context.Context, _ string, m *message.Message, done func(error)) {
	s.mu.Lock()
	if s.hold != nil && s.hold(m) {
		s.held = append(s.held, done)
		s.mu.Unlock()
		return
	}
	s.kept = append(s.kept, m)
	s.mu.Unlock()
	done(nil)
}

func (s *shelf) messages() []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*message.Message(nil), s.kept...)
}

func (s *shelf) values() []string {
	var values []string
	for _, m := range s.messages() {
		values = append(values, string(m.Value))
	}
	return values
}

func (s *shelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.kept)
}

// withheld is how many outcomes are kept back.
func (s *shelf) withheld() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// deny says of all that was kept back that it was not stored.
func (s *shelf) deny() {
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.mu.Unlock()
	for _, done := range held {
		done(errors.New("denied"))
	}
}

func pipelinesTo(t *testing.T, sink pipeline.Sink) *pipeline.Set {
	t.Helper()
	return pipelinesWithDead(t, sink, nil)
}

// pipelinesWithDead hands what is refused to dead; without it that is a failure.
func pipelinesWithDead(t *testing.T, sink pipeline.Sink, dead func(m *message.Message, reason error)) *pipeline.Set {
	t.Helper()
	var store func(context.Context, string, *message.Message, error, func(error))
	if dead != nil {
		store = func(_ context.Context, _ string, m *message.Message, reason error, done func(error)) {
			dead(m, reason)
			done(nil)
		}
	}
	return pipeline.NewSet(pipeline.Config{Messages: 10_000, Bytes: 32 << 20, CommitEvery: 50 * time.Millisecond, MinBackoff: 50 * time.Millisecond, MaxBackoff: time.Second},
		pipeline.Route{
			Sink:       sink,
			DeadLetter: store,
			Prepare: func() (pipeline.Prepare, func()) {
				return func(context.Context, *message.Message) (string, bool, error) { return "", true, nil }, nil
			},
			Stop:    func(err error) { t.Errorf("stopped: %v", err) },
			Report:  func(error) {},
			Log:     zaptest.NewLogger(t),
			Metrics: pipeline.NewMetrics(prometheus.NewRegistry()).Route("test"),
		})
}

// reports keeps what was reported.
type reports struct {
	mu   sync.Mutex
	list []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, err)
}

func (r *reports) last() (reported bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == 0 {
		return false, nil
	}
	return true, r.list[len(r.list)-1]
}

// awaitWell waits until the last report is that all is well.
func (r *reports) awaitWell(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { reported, err := r.last(); return reported && err == nil }, await.Patience, 20*time.Millisecond)
}

// awaitError waits until the last report is an error with that text.
func (r *reports) awaitError(t *testing.T, text string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := r.last()
		assert.ErrorContains(c, err, text)
	}, await.Patience, 20*time.Millisecond)
}

func sourceConfig(srv *stack.KafkaServer, group string, topics ...string) kafka.SourceConfig {
	cfg := kafka.DefaultSourceConfig()
	cfg.Brokers, cfg.Group, cfg.Topics = srv.Brokers(), group, topics
	// Members notice a rebalance at a heartbeat, and there are ten in a session.
	cfg.DiscoverEvery, cfg.CommitInterval, cfg.SessionTimeout = time.Second, 100*time.Millisecond, 15*time.Second
	return cfg
}

// running is a source or a sink that runs.
type running struct {
	*reports
	source  *kafka.Source
	sink    *kafka.Sink
	metrics *prometheus.Registry
	logs    *observer.ObservedLogs
	cancel  context.CancelFunc
	done    chan error
}

// stop ends it and returns what Run returned.
func (r *running) stop(t *testing.T) error {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(await.Patience):
		t.Fatal("Run did not return")
		return nil
	}
}

func run(t *testing.T, r *running, do func(context.Context) error) *running {
	t.Helper()
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.done = make(chan error, 1)
	go func() { r.done <- do(ctx) }()
	t.Cleanup(func() { _ = r.stop(t) })
	return r
}

func runSource(t *testing.T, cfg kafka.SourceConfig, to pipeline.Sink) *running {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	r := &running{reports: new(reports), metrics: prometheus.NewRegistry(), logs: logs}
	both := zaptest.WrapOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, core) }))
	source := cfg.NewSource(connector.Options{
		Log: zaptest.NewLogger(t, both), Report: r.add, Metrics: connector.NewMetrics(r.metrics).Part("test", "source"),
	})
	r.source = source.(*kafka.Source)
	pipelines := pipelinesTo(t, to)
	return run(t, r, func(ctx context.Context) error { return source.Run(ctx, pipelines) })
}

// counted is the sum of a counter's series.
func (r *running) counted(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := r.metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func sinkConfig(srv *stack.KafkaServer, topic string) kafka.SinkConfig {
	cfg := kafka.DefaultSinkConfig()
	cfg.Brokers, cfg.Topic = srv.Brokers(), topic
	return cfg
}

func runSink(t *testing.T, cfg kafka.SinkConfig) *running {
	t.Helper()
	r := &running{reports: new(reports)}
	sink := cfg.NewSink(connector.Options{Log: zaptest.NewLogger(t), Report: r.add})
	r.sink = sink.(*kafka.Sink)
	return run(t, r, sink.Run)
}

// send sends one message and returns its outcome.
func (r *running) send(t *testing.T, to string, m *message.Message) error {
	t.Helper()
	outcome := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	r.sink.Send(ctx, to, m, func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-time.After(await.Patience):
		t.Fatal("no outcome")
		return nil
	}
}

// client is a plain client of the test's own.
func client(t *testing.T, srv *stack.KafkaServer) sarama.Client {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_6_0_0
	conf.Producer.Return.Successes = true
	conf.Producer.Partitioner = sarama.NewManualPartitioner
	conf.Producer.RequiredAcks = sarama.WaitForAll
	c, err := sarama.NewClient(srv.Brokers(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// put stores values n, n+1 ... in a partition.
func put(t *testing.T, c sarama.Client, topic string, partition int32, from, count int) {
	t.Helper()
	producer, err := sarama.NewSyncProducerFromClient(c)
	require.NoError(t, err)
	defer producer.Close()
	var batch []*sarama.ProducerMessage
	for i := range count {
		batch = append(batch, &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(fmt.Sprintf("%d/%d", partition, from+i))})
	}
	require.NoError(t, producer.SendMessages(batch))
}

// wanted are the values that put stores.
func wanted(partition int32, from, count int) []string {
	var values []string
	for i := range count {
		values = append(values, fmt.Sprintf("%d/%d", partition, from+i))
	}
	return values
}

func clusterAdmin(t *testing.T, c sarama.Client) sarama.ClusterAdmin {
	t.Helper()
	admin, err := sarama.NewClusterAdminFromClient(c)
	require.NoError(t, err)
	return admin
}

// committed is what the group has committed; -1 for nothing.
func committed(t *testing.T, c sarama.Client, group, topic string, partition int32) int64 {
	t.Helper()
	admin := clusterAdmin(t, c)
	response, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {partition}})
	require.NoError(t, err)
	return response.GetBlock(topic, partition).Offset
}

// stored reads a partition from its start.
func stored(t *testing.T, c sarama.Client, topic string, partition int32, count int) []*sarama.ConsumerMessage {
	t.Helper()
	consumer, err := sarama.NewConsumerFromClient(c)
	require.NoError(t, err)
	reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	require.NoError(t, err)
	defer reader.Close()
	var list []*sarama.ConsumerMessage
	for len(list) < count {
		select {
		case m := <-reader.Messages():
			list = append(list, m)
		case <-time.After(await.Patience):
			t.Fatalf("%d of %d messages", len(list), count)
		}
	}
	return list
}
