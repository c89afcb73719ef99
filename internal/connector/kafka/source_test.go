package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 1)
	made, began := time.UnixMilli(1_700_000_000_123).UTC(), time.Now()
	sink := runSink(t, sinkConfig(srv, topic))
	origin := message.Origin{System: "kafka", Cluster: "far", Topic: "there", Partition: 3, Offset: 9}
	for _, m := range []*message.Message{
		{Key: []byte("k"), Value: []byte("v"), Time: made, Headers: []message.Header{
			{Name: "b", Value: []byte{0, 255}}, {Name: "a", Value: []byte("1")}, {Name: "b", Value: []byte("2")}, {Name: "none"},
		}},
		{Key: []byte("k"), Time: made}, // a tombstone
		{Key: []byte{}, Value: []byte{}, Time: made},
		{Value: []byte("no key"), Time: made},
		{Value: []byte("elsewhere"), Time: made, Origin: origin, Hops: []string{"one"}},
	} {
		require.NoError(t, sink.send(t, "", m))
	}
	to := new(shelf)
	source := runSource(t, sourceConfig(srv, topic+"-g", topic), to)
	require.Eventually(t, func() bool { return to.count() == 5 }, await.Patience, 10*time.Millisecond)
	got := to.messages()
	assert.Equal(t, "k", string(got[0].Key))
	assert.Equal(t, "v", string(got[0].Value))
	assert.Equal(t, []message.Header{{Name: "b", Value: []byte{0, 255}}, {Name: "a", Value: []byte("1")}, {Name: "b", Value: []byte("2")}, {Name: "none"}}, got[0].Headers)
	assert.NotEmpty(t, got[0].From.TopicID)
	assert.Equal(t, message.Origin{System: "kafka", Cluster: "kafka", Topic: topic, Partition: 0, Offset: 0, ID: got[0].From.TopicID}, got[0].Origin)
	assert.Equal(t, topic, got[0].From.Topic)
	assert.EqualValues(t, 4, got[4].From.Offset)
	assert.WithinRange(t, got[0].From.Received, began, time.Now())
	assert.True(t, got[0].From.Stored.IsZero(), "the producer has set the time")
	for _, m := range got {
		assert.Equal(t, made, m.Time.UTC())
	}
	assert.Nil(t, got[1].Value)
	assert.NotNil(t, got[2].Value)
	assert.NotNil(t, got[2].Key)
	assert.Nil(t, got[3].Key)
	assert.Equal(t, origin, got[4].Origin)
	assert.Equal(t, []string{"one"}, got[4].Hops)
	source.awaitWell(t)
	require.Eventually(t, func() bool { lag, err := source.source.Lag(t.Context()); return err == nil && lag == 0 }, await.Patience, 20*time.Millisecond)
	require.NoError(t, source.stop(t))
	assert.EqualValues(t, 5, committed(t, client(t, srv), topic+"-g", topic, 0))
}

func TestTheBrokersTimeIsKnownForWhatItIs(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.TopicWith(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	began := time.Now()
	put(t, client(t, srv), topic, 0, 0, 1)
	to := new(shelf)
	runSource(t, sourceConfig(srv, topic+"-g", topic), to)
	require.Eventually(t, func() bool { return to.count() == 1 }, await.Patience, 10*time.Millisecond)
	assert.WithinRange(t, to.messages()[0].From.Stored, began.Truncate(time.Millisecond), time.Now())
}

// Nothing past the first message that is not stored may be committed, and a successor goes on from
// there.
func TestCommitsTheWatermarkOnly(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 1)
	group := topic + "-g"
	put(t, c, topic, 0, 0, 100)
	to := &shelf{hold: func(m *message.Message) bool { return m.From.Offset == 40 }}
	cfg := sourceConfig(srv, group, topic)
	cfg.DrainTimeout = 500 * time.Millisecond
	first := runSource(t, cfg, to)
	require.Eventually(t, func() bool { return to.count() == 99 && to.withheld() == 1 }, await.Patience, 10*time.Millisecond)
	require.Eventually(t, func() bool { return committed(t, c, group, topic, 0) == 40 }, await.Patience, 10*time.Millisecond)
	lag, err := first.source.Lag(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 60, lag)
	require.NoError(t, first.stop(t))
	assert.EqualValues(t, 40, committed(t, c, group, topic, 0))

	again := new(shelf)
	runSource(t, cfg, again)
	require.Eventually(t, func() bool { return again.count() == 60 }, await.Patience, 10*time.Millisecond)
	assert.Equal(t, wanted(0, 40, 60), again.values())
	to.deny()
}

func TestRebalance(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 4)
	cfg := sourceConfig(srv, topic+"-g", topic)
	one, other := new(shelf), new(shelf)
	runSource(t, cfg, one).awaitWell(t)
	sent := 0
	produce := func() {
		for p := range int32(4) {
			put(t, c, topic, p, sent, 50)
		}
		sent += 50
	}
	produce()
	require.Eventually(t, func() bool { return one.count() == 200 }, await.Patience, 10*time.Millisecond)
	for range 3 {
		before := other.count()
		second := runSource(t, cfg, other)
		require.Eventually(t, func() bool {
			produce()
			return other.count() > before
		}, await.Patience, 200*time.Millisecond, "the second member gets partitions")
		produce()
		require.NoError(t, second.stop(t))
		produce()
	}
	require.Eventually(t, func() bool { return one.count()+other.count() >= 4*sent }, await.Patience, 50*time.Millisecond)
	assertAll(t, 4, sent, one, other)
	assert.Equal(t, 4*sent, one.count()+other.count(), "partitions change hands in good order: nothing comes twice")
}

// assertAll checks that each partition's messages are there, each shelf's in their order.
func assertAll(t *testing.T, partitions int32, count int, shelves ...*shelf) {
	t.Helper()
	for p := range partitions {
		seen := map[int64]bool{}
		for _, s := range shelves {
			last := int64(-1)
			for _, m := range s.messages() {
				if m.From.Partition != p {
					continue
				}
				assert.Greater(t, m.From.Offset, last, "order in partition %d", p)
				last = m.From.Offset
				seen[last] = true
			}
		}
		assert.Len(t, seen, count, "partition %d", p)
	}
}

func TestPartitionsAdded(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 1)
	to := new(shelf)
	runSource(t, sourceConfig(srv, topic+"-g", topic), to).awaitWell(t)
	admin := clusterAdmin(t, c)
	require.NoError(t, admin.CreatePartitions(topic, 3, nil, false))
	require.Eventually(t, func() bool { return c.RefreshMetadata(topic) == nil && len(partitionsOf(c, topic)) == 3 }, await.Patience, 50*time.Millisecond)
	put(t, c, topic, 2, 0, 10)
	require.Eventually(t, func() bool { return to.count() == 10 }, await.Patience, 20*time.Millisecond)
	assert.Equal(t, wanted(2, 0, 10), to.values())
}

func partitionsOf(c sarama.Client, topic string) []int32 {
	list, _ := c.Partitions(topic)
	return list
}

func TestPatternFindsNewTopics(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	stem := srv.Topic(t, 1)
	admin := clusterAdmin(t, c)
	create := func(name string) {
		require.NoError(t, admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
		t.Cleanup(func() { _ = admin.DeleteTopic(name) })
		require.Eventually(t, func() bool { return c.RefreshMetadata(name) == nil }, await.Patience, 20*time.Millisecond)
		put(t, c, name, 0, 0, 1)
	}
	cfg := sourceConfig(srv, stem+"-g")
	cfg.Pattern = strings.ReplaceAll(stem, ".", `\.`) + `-in-\w+`
	to := new(shelf)
	source := runSource(t, cfg, to)
	require.Eventually(t, func() bool {
		_, err := source.last()
		return err != nil && strings.Contains(err.Error(), "no topic matches")
	}, await.Patience, 20*time.Millisecond)
	create(stem + "-in-a")
	require.Eventually(t, func() bool { return to.count() == 1 }, await.Patience, 20*time.Millisecond)
	create(stem + "-out-a")
	create(stem + "-in-b")
	require.Eventually(t, func() bool { return to.count() == 2 }, await.Patience, 20*time.Millisecond)
	var topics []string
	for _, m := range to.messages() {
		topics = append(topics, m.From.Topic)
	}
	assert.Equal(t, []string{stem + "-in-a", stem + "-in-b"}, topics)
	source.awaitWell(t)
}

func TestAMissingTopicIsNamedAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 1)
	put(t, client(t, srv), topic, 0, 0, 3)
	to := new(shelf)
	source := runSource(t, sourceConfig(srv, topic+"-g", topic, topic+"-absent"), to)
	require.Eventually(t, func() bool { return to.count() == 3 }, await.Patience, 20*time.Millisecond)
	source.awaitError(t, topic+"-absent")
}

// One partition whose messages the sink does not take must not hold up the others.
func TestAStuckPartitionHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 2)
	put(t, c, topic, 0, 0, 20_000)
	to := &shelf{hold: func(m *message.Message) bool { return m.From.Partition == 0 }}
	cfg := sourceConfig(srv, topic+"-g", topic)
	cfg.BufferBytes = 1 << 20
	cfg.DrainTimeout = 500 * time.Millisecond
	source := runSource(t, cfg, to)
	require.Eventually(t, func() bool { return to.withheld() == 5_000 }, await.Patience, 10*time.Millisecond, "the pipeline is full")
	for i := range 5 {
		put(t, c, topic, 1, i, 1)
		require.Eventually(t, func() bool { return to.count() == i+1 }, await.Patience, time.Millisecond)
	}
	require.NoError(t, source.stop(t))
	assert.LessOrEqual(t, committed(t, c, topic+"-g", topic, 0), int64(0))
	to.deny()
}

func TestGap(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	admin := clusterAdmin(t, c)
	read := func(t *testing.T, cfg kafka.SourceConfig, count int) {
		t.Helper()
		to := new(shelf)
		source := runSource(t, cfg, to)
		require.Eventually(t, func() bool { return to.count() == count }, await.Patience, 10*time.Millisecond)
		require.NoError(t, source.stop(t))
	}
	trim := func(t *testing.T, topic string) {
		t.Helper()
		put(t, c, topic, 0, 10, 20)
		require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: 25}))
	}
	recreate := func(t *testing.T, topic string) {
		t.Helper()
		require.NoError(t, admin.DeleteTopic(topic))
		require.Eventually(t, func() bool {
			return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false) == nil
		}, await.Patience, 50*time.Millisecond)
		// The broker may still have the old log for a while, and would take messages for it.
		require.Eventually(t, func() bool {
			newest, err := c.GetOffset(topic, 0, sarama.OffsetNewest)
			return c.RefreshMetadata(topic) == nil && err == nil && newest == 0
		}, await.Patience, 20*time.Millisecond)
	}

	t.Run("trimmed, alarm", func(t *testing.T) {
		t.Parallel()
		topic := srv.Topic(t, 1)
		cfg := sourceConfig(srv, topic+"-g", topic)
		put(t, c, topic, 0, 0, 10)
		read(t, cfg, 10)
		trim(t, topic)
		to := new(shelf)
		source := runSource(t, cfg, to)
		require.Eventually(t, func() bool { return to.count() == 5 }, await.Patience, 10*time.Millisecond)
		assert.Equal(t, 1, source.logs.FilterLevelExact(zap.ErrorLevel).FilterField(zap.String("topic", topic)).Len())
		assert.Equal(t, wanted(0, 25, 5), to.values())
		require.Eventually(t, func() bool { return committed(t, c, cfg.Group, topic, 0) == 30 }, await.Patience, 10*time.Millisecond)
	})
	t.Run("trimmed, fail", func(t *testing.T) {
		t.Parallel()
		topic := srv.Topic(t, 1)
		cfg := sourceConfig(srv, topic+"-g", topic)
		cfg.OnGap = "fail"
		put(t, c, topic, 0, 0, 10)
		read(t, cfg, 10)
		trim(t, topic)
		to := new(shelf)
		source := runSource(t, cfg, to)
		select {
		case err := <-source.done:
			source.done <- err
			var gap *kafka.GapError
			require.ErrorAs(t, err, &gap)
			assert.Equal(t, kafka.GapError{Topic: topic, Committed: 10, Oldest: 25, Newest: 30}, *gap)
		case <-time.After(await.Patience):
			t.Fatal("it goes on")
		}
		assert.Zero(t, to.count())
		assert.EqualValues(t, 10, committed(t, c, cfg.Group, topic, 0))
	})
	for name, refill := range map[string]int{"recreated, shorter": 3, "recreated, longer": 15} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, 1)
			cfg := sourceConfig(srv, topic+"-g", topic)
			put(t, c, topic, 0, 0, 10)
			read(t, cfg, 10)
			recreate(t, topic)
			put(t, c, topic, 0, 100, refill)
			to := new(shelf)
			runSource(t, cfg, to)
			require.Eventually(t, func() bool { return to.count() == refill }, await.Patience, 10*time.Millisecond)
			assert.Equal(t, wanted(0, 100, refill), to.values())
			require.Eventually(t, func() bool { return committed(t, c, cfg.Group, topic, 0) == int64(refill) }, await.Patience, 10*time.Millisecond)
		})
	}
}

func TestAbortedTransactionsAreLeftOut(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	topic := srv.Topic(t, 1)
	end := transactions(t, srv, topic)
	for _, value := range []string{"kept", "aborted", "kept too"} {
		end(value != "aborted", value)
	}
	cfg := sourceConfig(srv, topic+"-g", topic)
	to := new(shelf)
	runSource(t, cfg, to)
	require.Eventually(t, func() bool { return to.count() == 2 }, await.Patience, 10*time.Millisecond)
	assert.Equal(t, []string{"kept", "kept too"}, to.values())
	cfg.Group, cfg.IsolationLevel = topic+"-h", "read_uncommitted"
	all := new(shelf)
	runSource(t, cfg, all)
	require.Eventually(t, func() bool { return all.count() == 3 }, await.Patience, 10*time.Millisecond)
}

func TestSourceEndsWithItsContextWhereverItIs(t *testing.T) {
	t.Parallel()
	cfg := kafka.DefaultSourceConfig()
	cfg.Brokers, cfg.Group, cfg.Topics = []string{"127.0.0.1:1"}, "g", []string{"t"}
	source := runSource(t, cfg, new(shelf))
	require.Eventually(t, func() bool { _, err := source.last(); return err != nil }, await.Patience, 10*time.Millisecond)
	_, err := source.last()
	assert.ErrorContains(t, err, "127.0.0.1:1")
	_, err = source.source.Lag(t.Context())
	require.Error(t, err)
	require.NoError(t, source.stop(t))
	assert.False(t, slices.ContainsFunc(source.list, func(err error) bool { return errors.Is(err, context.Canceled) }))
}
