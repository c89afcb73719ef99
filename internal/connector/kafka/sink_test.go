package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

func assertRefused(t *testing.T, reason string, err error) {
	t.Helper()
	require.Error(t, err)
	got, refused := pipeline.Refused(err)
	assert.True(t, refused, "%v", err)
	assert.Equal(t, reason, got)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 2)
	cfg := sinkConfig(srv, topic)
	cfg.Partition = "source"
	sink := runSink(t, cfg)
	from := func(p int32, value string) *message.Message {
		return &message.Message{Value: []byte(value), From: message.From{Partition: p}}
	}
	assertRefused(t, "too_large", sink.send(t, "", from(0, strings.Repeat("x", 1_000_000))))
	assertRefused(t, "invalid_topic", sink.send(t, "a/b", from(0, "x")))
	assertRefused(t, "invalid_partition", sink.send(t, "", from(2, "x")))
	assertRefused(t, "invalid_partition", sink.send(t, "", from(-1, "x")))
	require.NoError(t, sink.send(t, "", from(1, "x")))
	assert.Equal(t, "x", string(stored(t, client(t, srv), topic, 1, 1)[0].Value))
	cfg.Topic = ""
	assertRefused(t, "no_topic", runSink(t, cfg).send(t, "", from(0, "x")))
	many := &message.Message{Value: []byte("v"), Time: time.UnixMilli(1)}
	for i := range 10_000 {
		many.Headers = append(many.Headers, message.Header{Name: fmt.Sprintf("\xff%d", i), Value: []byte{0}})
	}
	require.NoError(t, sink.send(t, "", many))
	assert.Len(t, stored(t, client(t, srv), topic, 0, 1)[0].Headers, 10_000)
}

// A partition that the sink does not know of yet is looked for before a message is refused for it.
func TestPartitionAddedBehindTheSink(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 1)
	cfg := sinkConfig(srv, topic)
	cfg.Partition = "source"
	sink := runSink(t, cfg)
	second := &message.Message{Value: []byte("v"), From: message.From{Partition: 1}}
	assertRefused(t, "invalid_partition", sink.send(t, "", second))
	c := client(t, srv)
	admin := clusterAdmin(t, c)
	require.NoError(t, admin.CreatePartitions(topic, 2, nil, false))
	require.Eventually(t, func() bool { return sink.send(t, "", second) == nil }, await.Patience, 100*time.Millisecond)
	require.NoError(t, c.RefreshMetadata(topic))
	assert.Equal(t, "v", string(stored(t, c, topic, 1, 1)[0].Value))
}

// The broker refuses a batch for one message in it. Those beside it must be stored, and in order.
func TestOnlyTheMessageThatIsTooLargeForTheTopicIsRefused(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.TopicWith(t, 1, map[string]string{"max.message.bytes": "20000", "compression.type": "producer"})
	cfg := sinkConfig(srv, topic)
	cfg.Compression = "none"
	sink := runSink(t, cfg)
	var refused []int64
	dead := make(chan int64, 10)
	pipelines := pipelinesWithDead(t, sink.sink, func(m *message.Message, reason error) {
		name, _ := pipeline.Refused(reason)
		assert.Equal(t, "too_large", name)
		dead <- m.From.Offset
	})
	const count = 300
	l, committed := open(t, pipelines)
	for i := range int64(count) {
		size := 200
		if i == 100 || i == 250 {
			size = 50_000
		}
		require.NoError(t, l.Offer(t.Context(), &message.Message{Value: fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", size)), From: message.From{Offset: i}}, i))
	}
	require.Eventually(t, func() bool { return committed.Load() == count-1 }, await.Patience, 10*time.Millisecond)
	for range 2 {
		refused = append(refused, <-dead)
	}
	assert.ElementsMatch(t, []int64{100, 250}, refused)
	c := client(t, srv)
	all, err := c.GetOffset(topic, 0, sarama.OffsetNewest)
	require.NoError(t, err)
	assert.Len(t, lasts(t, stored(t, c, topic, 0, int(all))), count-2)
}

// lasts are the numbers that values begin with, each where it stands last. They must ascend: what a
// failure has overtaken is sent again behind it, so each message is followed by all that came after
// it.
func lasts(t *testing.T, list []*sarama.ConsumerMessage) []int64 {
	t.Helper()
	var numbers []int64
	seen := map[int64]bool{}
	for _, m := range slices.Backward(list) {
		var n int64
		_, err := fmt.Fscan(bytes.NewReader(m.Value), &n)
		require.NoError(t, err)
		if !seen[n] {
			if len(numbers) > 0 {
				assert.Less(t, n, numbers[len(numbers)-1], "order")
			}
			seen[n] = true
			numbers = append(numbers, n)
		}
	}
	return numbers
}

func open(t *testing.T, pipelines *pipeline.Set) (*pipeline.Pipeline, *atomic.Int64) {
	t.Helper()
	committed := new(atomic.Int64)
	committed.Store(-1)
	l := pipelines.Open("test", func(position int64) error { committed.Store(position); return nil })
	t.Cleanup(l.Abandon)
	return l, committed
}

func TestMissingTopic(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 1) + "-new"
	admin := clusterAdmin(t, c)
	t.Cleanup(func() { _ = admin.DeleteTopic(topic) })
	m := &message.Message{Value: []byte("v")}

	cfg := sinkConfig(srv, topic)
	sink := runSink(t, cfg)
	err := sink.send(t, "", m)
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	_, refused := pipeline.Refused(err)
	assert.False(t, refused)
	sink.awaitError(t, topic)

	cfg.MissingTopic, cfg.CreatePartitions = "create", 3
	creating := runSink(t, cfg)
	require.Eventually(t, func() bool { return creating.send(t, "", m) == nil }, await.Patience, 100*time.Millisecond)
	creating.awaitWell(t)
	require.NoError(t, c.RefreshMetadata(topic))
	assert.Len(t, partitionsOf(c, topic), 3)
	require.Eventually(t, func() bool { return sink.send(t, "", m) == nil }, await.Patience, 100*time.Millisecond, "the one that waits finds it")
	sink.awaitWell(t)
}

// Without a broker a message is kept until the sink stops, and one that comes before Run waits as
// long as its context.
func TestSendWithoutConnection(t *testing.T) {
	t.Parallel()
	cfg := kafka.DefaultSinkConfig()
	cfg.Brokers, cfg.Topic = []string{"127.0.0.1:1"}, "t"
	sink := runSink(t, cfg)
	outcomes := make(chan error, 2)
	note := func(err error) { outcomes <- err }
	sink.sink.Send(t.Context(), "", &message.Message{}, note)
	require.Eventually(t, func() bool { _, err := sink.last(); return err != nil }, await.Patience, 10*time.Millisecond)
	_, err := sink.last()
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NoError(t, sink.stop(t))
	require.Error(t, <-outcomes)
	sink.sink.Send(t.Context(), "", &message.Message{}, note)
	require.Error(t, <-outcomes, "after Run")

	idle := cfg.NewSink(connector.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	idle.Send(ctx, "", &message.Message{}, note)
	require.ErrorIs(t, <-outcomes, context.Canceled)
}

// Every done is called, once, when the sink stops under load.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 3)
	sink := runSink(t, sinkConfig(srv, topic))
	var sent, finished, kept atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var ended []chan struct{}
	for range 4 {
		end := make(chan struct{})
		ended = append(ended, end)
		go func() {
			defer close(end)
			for ctx.Err() == nil {
				sent.Add(1)
				sink.sink.Send(ctx, "", &message.Message{Value: make([]byte, 100)}, func(err error) {
					finished.Add(1)
					if err == nil {
						kept.Add(1)
					}
				})
			}
		}()
	}
	require.Eventually(t, func() bool { return kept.Load() > 1000 }, await.Patience, time.Millisecond)
	require.NoError(t, sink.stop(t))
	cancel()
	for _, end := range ended {
		<-end
	}
	assert.Equal(t, sent.Load(), finished.Load())
}

func TestBrokerRestartLosesNothing(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateKafka(t)
	topic := srv.Topic(t, 1)
	sink := runSink(t, sinkConfig(srv, topic))
	to := new(shelf)
	source := runSource(t, sourceConfig(srv, topic+"-g", topic), to)
	l, committed := open(t, pipelinesTo(t, sink.sink))
	var restarted atomic.Bool // until then messages come as fast as the sink takes them
	offered := make(chan int64, 1)
	go func() {
		n := int64(0)
		for ; !restarted.Load(); n++ {
			value := fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", 500))
			if !assert.NoError(t, l.Offer(context.Background(), &message.Message{Value: value}, n)) {
				break
			}
		}
		offered <- n
	}()
	require.Eventually(t, func() bool { return committed.Load() > 2000 }, await.Patience, 10*time.Millisecond)
	require.NoError(t, srv.Kill())
	require.Eventually(t, func() bool { _, err := sink.last(); return err != nil }, await.Patience, 10*time.Millisecond)
	require.NoError(t, srv.Start(t.Context()))
	sink.awaitWell(t)
	before := committed.Load()
	require.Eventually(t, func() bool { return committed.Load() > before+2000 }, await.Patience, 10*time.Millisecond)
	restarted.Store(true)
	count := int(<-offered)
	require.Eventually(t, func() bool { return committed.Load() == int64(count)-1 }, await.Patience, 10*time.Millisecond)
	require.Eventually(t, func() bool { return distinct(to) == count }, await.Patience, 50*time.Millisecond)
	var list []*sarama.ConsumerMessage
	for _, m := range to.messages() {
		list = append(list, &sarama.ConsumerMessage{Value: m.Value})
	}
	assert.Len(t, lasts(t, list), count)
	t.Logf("%d came twice", len(list)-count)
	source.awaitWell(t)
	require.NoError(t, source.stop(t))
}

func distinct(s *shelf) int {
	seen := map[string]bool{}
	for _, m := range s.messages() {
		seen[string(m.Value)] = true
	}
	return len(seen)
}
