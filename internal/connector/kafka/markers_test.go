package kafka_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// transactions is a producer whose transactions can be ended one by one.
func transactions(t *testing.T, srv *stack.KafkaServer, topic string) func(commit bool, values ...string) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_6_0_0
	conf.Net.MaxOpenRequests = 1
	conf.Producer.Idempotent, conf.Producer.RequiredAcks = true, sarama.WaitForAll
	conf.Producer.Return.Successes = true
	conf.Producer.Transaction.ID = topic
	producer, err := sarama.NewSyncProducer(srv.Brokers(), conf)
	require.NoError(t, err)
	t.Cleanup(func() { producer.Close() })
	return func(commit bool, values ...string) {
		require.NoError(t, producer.BeginTxn())
		for _, v := range values {
			_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(v)})
			require.NoError(t, err)
		}
		if commit {
			require.NoError(t, producer.CommitTxn())
		} else {
			require.NoError(t, producer.AbortTxn())
		}
	}
}

// A topic ends with what transactions leave. All of it counts as read: the lag is 0, and when
// retention has deleted everything that is no gap.
func TestWhatTransactionsLeaveIsPassed(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	admin := clusterAdmin(t, c)
	type txn struct {
		commit bool
		values []string
	}
	few := []string{"a", "b", "c"}
	for name, test := range map[string]struct {
		isolation    string
		transactions []txn
		count        int
	}{
		"a commit":                   {"read_committed", []txn{{true, few}}, 3},
		"a commit, uncommitted":      {"read_uncommitted", []txn{{true, few}}, 3},
		"an abort behind a commit":   {"read_committed", []txn{{true, few}, {false, few}}, 3},
		"an abort, uncommitted":      {"read_uncommitted", []txn{{true, few}, {false, few}}, 6},
		"a commit behind two aborts": {"read_committed", []txn{{false, few}, {false, few}, {true, few}}, 3},
		"aborts only":                {"read_committed", []txn{{false, few}, {false, few}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, 1)
			end := transactions(t, srv, topic)
			for _, x := range test.transactions {
				end(x.commit, x.values...)
			}
			cfg := sourceConfig(srv, topic+"-g", topic)
			cfg.OnGap, cfg.IsolationLevel = "fail", test.isolation
			to := new(shelf)
			source := runSource(t, cfg, to)
			newest := int64(len(test.transactions) * (len(few) + 1)) // each has a marker
			require.Eventually(t, func() bool { return committed(t, c, cfg.Group, topic, 0) == newest }, await.Patience, 10*time.Millisecond)
			require.Eventually(t, func() bool { lag, err := source.source.Lag(t.Context()); return err == nil && lag == 0 }, await.Patience, 10*time.Millisecond)
			assert.Equal(t, test.count, to.count())
			require.NoError(t, source.stop(t))

			require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: newest}))
			again := new(shelf)
			source = runSource(t, cfg, again)
			end(true, "later")
			require.Eventually(t, func() bool { return again.count() == 1 }, await.Patience, 10*time.Millisecond, "it goes on")
			assert.Equal(t, []string{"later"}, again.values())
			require.NoError(t, source.stop(t))
		})
	}
}

// Every message among markers arrives while the committed offset passes these.
func TestMarkersPassNoMessage(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	topic := srv.Topic(t, 1)
	end := transactions(t, srv, topic)
	end(true, "0/0")
	to := new(shelf)
	cfg := sourceConfig(srv, topic+"-g", topic)
	source := runSource(t, cfg, to)
	require.Eventually(t, func() bool { return committed(t, c, cfg.Group, topic, 0) == 2 }, await.Patience, 10*time.Millisecond, "the message and its marker")
	for i := range 20 {
		end(i%3 > 0, "value")
	}
	require.Eventually(t, func() bool { return committed(t, c, cfg.Group, topic, 0) == 42 }, await.Patience, 10*time.Millisecond)
	assert.Equal(t, 14, to.count())
	require.NoError(t, source.stop(t))
}

// A group without offsets, new or with expired ones, begins at the oldest message. One line for the
// topic says so. It is no warning: the first start of a group is like this.
func TestStartWithoutACommittedOffset(t *testing.T) {
	t.Parallel()
	srv := stack.Kafka(t)
	c := client(t, srv)
	admin := clusterAdmin(t, c)
	const partitions = 3
	topic := srv.Topic(t, partitions)
	for p := range int32(partitions) {
		put(t, c, topic, p, 0, 10)
	}
	cfg := sourceConfig(srv, topic+"-g", topic)
	read := func(starts, lines int) {
		t.Helper()
		to := new(shelf)
		source := runSource(t, cfg, to)
		put(t, c, topic, 0, 10, 1)
		require.Eventually(t, func() bool {
			for p := range int32(partitions) {
				if committed(t, c, cfg.Group, topic, p) <= 0 {
					return false
				}
			}
			return to.count() > 0
		}, await.Patience, 10*time.Millisecond)
		assert.InDelta(t, starts, source.counted(t, "kafka_starts_total"), 0)
		require.NoError(t, source.stop(t))
		assert.Equal(t, lines, source.logs.FilterLevelExact(zap.InfoLevel).FilterMessageSnippet("without a committed offset").Len())
		assert.Zero(t, source.logs.FilterLevelExact(zap.WarnLevel).Len())
	}
	read(partitions, 1)
	read(0, 0)
	require.Eventually(t, func() bool { return admin.DeleteConsumerGroup(cfg.Group) == nil }, await.Patience, 50*time.Millisecond)
	read(partitions, 1)
}
