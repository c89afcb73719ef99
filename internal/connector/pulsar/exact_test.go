package pulsar

import (
	"math/rand/v2"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// numbered is the message at an offset of a Kafka partition.
func numbered(partition int32, offset int64) *message.Message {
	return &message.Message{
		Key: []byte("p" + strconv.Itoa(int(partition))), Value: []byte(strconv.FormatInt(offset, 10)),
		Origin: message.Origin{System: "kafka", Cluster: "main", Topic: "orders", Partition: partition, Offset: offset},
		Hop:    "kafka;main;orders",
		From:   message.From{System: "kafka", Cluster: "main", Topic: "orders", Partition: partition, Offset: offset},
	}
}

func exactly(url string) func(*SinkConfig) {
	return func(c *SinkConfig) {
		c.URL, c.EffectivelyOnce, c.Partition = url, true, partitionSource
	}
}

// deduplicated makes a topic in a namespace with deduplication, as an operator does.
func deduplicated(t *testing.T, srv *stack.PulsarServer, partitions int) string {
	t.Helper()
	ns := srv.Namespace(t)
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	// Topics need their last message: nothing else keeps it.
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/retention",
		map[string]int{"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}, nil))
	return srv.Topic(t, ns, partitions)
}

func TestResumeKnowsWhatIsStored(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := deduplicated(t, srv, 2)
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	_, ok, err := sink.Resume(testContext(t), topic, &numbered(1, 0).From)
	require.NoError(t, err)
	require.False(t, ok)
	for i := range int64(10) {
		require.NoError(t, send(t, sink, topic, numbered(1, 2*i))) // offsets have gaps
	}
	offset, ok, err := sink.Resume(testContext(t), topic, &numbered(1, 0).From)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 18, offset)
	sinking.stop(t)

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	offset, ok, err = sink.Resume(testContext(t), topic, &numbered(1, 0).From)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 18, offset)
	for i := range int64(30) { // from the beginning again
		require.NoError(t, send(t, sink, topic, numbered(1, i)))
	}
	for _, bad := range []struct {
		m      *message.Message
		reason string
	}{
		{numbered(2, 1), "no_partition"},
		{&message.Message{From: message.From{Partition: 1, Offset: -1}}, "no_offset"},
		{&message.Message{From: message.From{Topic: "others", Partition: 1, Offset: 100}}, "other_source"},
	} {
		reason, _ := pipeline.Refused(send(t, sink, topic, bad.m))
		require.Equal(t, bad.reason, reason)
	}
	sinking.stop(t)
	got := read(t, dial(t, messaging.Config{URL: srv.URL()}), topic)
	require.Len(t, got, 10+11)
}

// Another process takes a partition over once this one has released it.
func TestReleaseHandsOver(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := deduplicated(t, srv, 1)
	one, oneRunning := startSink(t, srv.URL(), exactly(srv.URL()))
	two, twoRunning := startSink(t, srv.URL(), exactly(srv.URL()))
	require.NoError(t, send(t, one, topic, numbered(0, 1)))
	waiting := make(chan error, 1)
	two.Send(testContext(t), topic, numbered(0, 1), func(err error) { waiting <- err })
	require.Never(t, func() bool { return len(waiting) > 0 }, 200*time.Millisecond, 10*time.Millisecond, "while the first has it")
	// The first does not become idle.
	one.mu.RLock()
	for _, w := range one.writers {
		w.users.lastUsed.Store(int64(time.Hour))
	}
	one.mu.RUnlock()
	one.Release(topic, 0)
	require.NoError(t, <-waiting)
	require.NoError(t, send(t, two, topic, numbered(0, 2)))
	oneRunning.stop(t)
	twoRunning.stop(t)
	require.Len(t, read(t, dial(t, messaging.Config{URL: srv.URL()}), topic), 2)
}

// What somebody else put behind our last message hides it: then deduplication knows.
func TestDeduplicationKnowsWhatIsStored(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := deduplicated(t, srv, 1)
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	for i := range int64(10) {
		require.NoError(t, send(t, sink, topic, numbered(0, i)))
	}
	sinking.stop(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	publish(t, client, topic, 0, 1, false)

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	_, ok, err := sink.Resume(testContext(t), topic, &numbered(0, 0).From)
	require.NoError(t, err)
	require.False(t, ok, "the last message says nothing")
	for i := int64(5); i < 15; i++ {
		require.NoError(t, send(t, sink, topic, numbered(0, i)))
	}
	sinking.stop(t)
	all := read(t, client, topic)
	require.Len(t, all, 10+1+5)
	next := int64(0)
	for _, d := range all {
		if at, ok := message.Place(d.Properties); ok {
			require.Equal(t, next, at.Offset)
			next++
		}
	}
}

// A pipeline that is opened anew sends what the one before had in flight. That is not
// stored before it is.
func TestTheSameAgainWaitsForItsOutcome(t *testing.T) {
	t.Parallel()
	srv := stack.PrivatePulsar(t)
	topic := deduplicated(t, srv, 1)
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	require.NoError(t, send(t, sink, topic, numbered(0, 0)))
	require.NoError(t, srv.Pause())
	outcomes := make(chan error, 6)
	for range 2 {
		for i := int64(1); i < 4; i++ {
			sink.Send(testContext(t), topic, numbered(0, i), func(err error) { outcomes <- err })
		}
	}
	require.NoError(t, send(t, sink, topic, numbered(0, 0)), "it is stored")
	m := numbered(0, 4)
	m.Value = make([]byte, 6<<20)
	reason, _ := pipeline.Refused(send(t, sink, topic, m))
	require.Equal(t, "too_large", reason)
	require.Never(t, func() bool { return len(outcomes) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, srv.Resume())
	for range cap(outcomes) {
		require.NoError(t, <-outcomes)
	}
	sinking.stop(t)
	require.Len(t, read(t, dial(t, messaging.Config{URL: srv.URL()}), topic), 4)
}

// randomValue cannot be compressed.
func randomValue(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}

// With max_message_bytes above the brokers' limit nothing passes a message that the brokers refuse: a
// later process would take it for stored. With the right limit it is refused before it is sent.
func TestBrokersWithALowerLimit(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := deduplicated(t, srv, 1)
	large := numbered(0, 1)
	large.Value = randomValue(5<<20 + 100)
	sink, sinking := startSink(t, srv.URL(), func(c *SinkConfig) { exactly(srv.URL())(c); c.MaxMessageBytes = 8 << 20 })
	require.NoError(t, send(t, sink, topic, numbered(0, 0)))
	outcomes := make(chan error, 2)
	for _, m := range []*message.Message{large, numbered(0, 2)} {
		sink.Send(testContext(t), topic, m, func(err error) { outcomes <- err })
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.ErrorContains(c, sink.healthError(), "maxMessageSize") }, await.Patience, time.Millisecond)
	require.Empty(t, outcomes)
	sinking.stop(t)
	for range cap(outcomes) {
		require.Error(t, <-outcomes)
	}

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	reason, _ := pipeline.Refused(send(t, sink, topic, large))
	require.Equal(t, "too_large", reason)
	require.NoError(t, send(t, sink, topic, numbered(0, 2)))
	for name, fill := range map[string]func(m *message.Message, b []byte){
		"value":        func(m *message.Message, b []byte) { m.Value = b },
		"key":          func(m *message.Message, b []byte) { m.Key = b },
		"ordering key": func(m *message.Message, b []byte) { m.OrderingKey = string(b) },
		"header":       func(m *message.Message, b []byte) { m.Headers = []message.Header{{Name: "h", Value: b}} },
		"name":         func(m *message.Message, b []byte) { m.Headers = []message.Header{{Name: string(b)}} },
		"AMQP":         func(m *message.Message, b []byte) { m.AMQP = &message.AMQP{MessageID: string(b)} },
		"hops":         func(m *message.Message, b []byte) { m.Hops = []string{string(b)} },
		"origin":       func(m *message.Message, b []byte) { m.Origin.ID = string(b) },
	} {
		largest, all := numbered(0, 0), randomValue(5<<20)
		size := sort.Search(len(all), func(n int) bool { fill(largest, all[:n]); return sink.Oversized(largest) }) - 1
		fill(largest, all[:size])
		require.NoError(t, send(t, sink, deduplicated(t, srv, 1), largest), "%s of %d bytes, which is not oversized, is stored", name, size)
	}
	sinking.stop(t)
	require.Len(t, read(t, dial(t, messaging.Config{URL: srv.URL()}), topic), 2)
}

// TestRecreatedSourceIsNotTakenForStored: its offsets begin again. What the partition holds of the
// former topic of that name, or of another cluster's, is refused by both names, until the
// configuration says to go on behind it.
func TestRecreatedSourceIsNotTakenForStored(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := deduplicated(t, srv, 1)
	of := func(id string, offset int64) *message.Message {
		m := numbered(0, offset)
		m.Origin.ID, m.From.TopicID = id, id
		return m
	}
	resume := func(sink *Sink, m *message.Message) (int64, error) {
		offset, _, err := sink.Resume(testContext(t), topic, &m.From)
		return offset, err
	}
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	for i := range int64(5) {
		require.NoError(t, send(t, sink, topic, of("former", i)))
	}
	_, err := resume(sink, of("new", 0))
	require.ErrorContains(t, err, "still stores messages")
	_, refused := pipeline.Refused(err)
	require.False(t, refused, "it is released when nothing is left of it")
	other := of("new", 0)
	other.From.Topic = "others"
	_, err = resume(sink, other)
	reason, _ := pipeline.Refused(err)
	require.Equal(t, "other_source", reason)
	sinking.stop(t)

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	_, err = resume(sink, of("new", 0))
	reason, _ = pipeline.Refused(err)
	require.Equal(t, "other_source", reason)
	require.ErrorContains(t, err, "kafka;main;orders (id former)")
	require.ErrorContains(t, err, "kafka;main;orders (id new)")
	require.ErrorContains(t, err, "former_sources")
	sinking.stop(t)

	knowing := func(c *SinkConfig) {
		exactly(srv.URL())(c)
		c.FormerSources = []string{"former"}
	}
	for _, want := range []int64{-1, 3} { // the second time it is a restart
		sink, sinking = startSink(t, srv.URL(), knowing)
		offset, ok, err := sink.Resume(testContext(t), topic, &of("new", 0).From)
		require.NoError(t, err)
		require.Equal(t, want >= 0, ok)
		require.Equal(t, want, offset)
		for i := range int64(4) {
			require.NoError(t, send(t, sink, topic, of("new", i)))
		}
		sinking.stop(t)
	}
	var got []string
	for _, d := range read(t, dial(t, messaging.Config{URL: srv.URL()}), topic) {
		at, _ := message.Place(d.Properties)
		got = append(got, at.ID+" "+string(d.Payload))
	}
	require.Equal(t, []string{"former 0", "former 1", "former 2", "former 3", "former 4", "new 0", "new 1", "new 2", "new 3"}, got)
}

// TestSourceTopics are told apart by id, else by the cluster's name, as far as both tell it.
func TestSourceTopics(t *testing.T) {
	topic := func(cluster, name, id string) sourceTopic { return sourceTopic{"kafka", cluster, name, id} }
	now := topic("main", "orders", "A")
	for _, same := range []sourceTopic{now, topic("renamed", "orders", "A"), topic("main", "orders", ""), {topic: "orders"}} {
		require.True(t, now.same(same), "%s", same)
	}
	for _, other := range []sourceTopic{topic("main", "orders", "B"), topic("far", "orders", ""), topic("main", "others", "A"), {topic: "others"}} {
		require.False(t, now.same(other), "%s", other)
	}
}
