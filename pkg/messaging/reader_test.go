package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

func openReader(t *testing.T, client *messaging.Client, change func(*messaging.ReaderConfig)) *messaging.Reader {
	t.Helper()
	cfg := messaging.ReaderConfig{Topic: topic}
	if change != nil {
		change(&cfg)
	}
	r, err := client.Reader(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close(context.Background())) })
	return r
}

// toEnd reads all there is now.
func toEnd(t *testing.T, r *messaging.Reader) []*messaging.Delivery {
	t.Helper()
	var all []*messaging.Delivery
	n, err := r.ReadToEnd(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		all = append(all, d)
		return nil
	})
	require.NoError(t, err)
	require.Len(t, all, n)
	return all
}

func texts(all []*messaging.Delivery) []string {
	var out []string
	for _, d := range all {
		out = append(out, string(d.Payload))
	}
	return out
}

func caughtUp(r *messaging.Reader) bool {
	select {
	case <-r.CaughtUp():
		return true
	default:
		return false
	}
}

// from begins at a position.
func from(at messaging.Position) func(*messaging.ReaderConfig) {
	return func(c *messaging.ReaderConfig) { c.From = &at }
}

// batch is n messages, the first of which is number first.
func batch(first, n int) []fakebroker.Message {
	ms := make([]fakebroker.Message, n)
	for i := range ms {
		ms[i].Payload = []byte(strconv.Itoa(first + i))
	}
	return ms
}

func inOrder(first, n int) []string {
	var out []string
	for i := range n {
		out = append(out, strconv.Itoa(first+i))
	}
	return out
}

func TestReaderReadsEachPartitionInOrder(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 3)
	client := dial(t, s.URL())
	for i := range 300 {
		s.Publish(topic, fakebroker.Message{Key: "k" + strconv.Itoa(i%7), Payload: []byte(strconv.Itoa(i))})
	}
	r := openReader(t, client, nil)
	var next [7]int
	for i := range next {
		next[i] = i
	}
	for range 300 {
		require.False(t, caughtUp(r))
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		i, _ := strconv.Atoi(string(d.Payload))
		require.Equal(t, next[i%7], i)
		next[i%7] += 7
		require.Equal(t, d.Partition, d.ID.Partition())
		require.Equal(t, fmt.Sprintf("%s-partition-%d", topic, d.Partition), d.Topic)
	}
	require.False(t, caughtUp(r), "the last one may still be at work on")
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := r.Next(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, caughtUp(r))

	// Another one goes on where this one is.
	for i := range 20 {
		s.PublishBatch(topic+"-partition-1", fakebroker.None, batch(1000+10*i, 10)...)
	}
	var first []string
	for range 55 {
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		first = append(first, string(d.Payload))
	}
	require.Len(t, r.Positions(), 3)
	second := openReader(t, client, func(c *messaging.ReaderConfig) {
		for _, id := range r.Positions() { // as a store of positions gives them back
			again, err := messaging.ParseMessageID(id.Bytes())
			require.NoError(t, err)
			c.After = append(c.After, again)
		}
	})
	require.Equal(t, inOrder(1000, 200), append(first, texts(toEnd(t, second))...), "in the middle of a batch")
	require.True(t, caughtUp(second))
}

func TestReaderOfNothingIsCaughtUp(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 4)
	client := dial(t, s.URL())
	require.True(t, caughtUp(openReader(t, client, nil)), "an empty topic")
	one := topic + "-partition-3"
	s.PublishBatch(one, fakebroker.None, batch(0, 3)...)
	r := openReader(t, client, from(messaging.Latest()))
	require.True(t, caughtUp(r), "from the end")
	require.Empty(t, toEnd(t, r))

	// What is published after opening comes, though nothing was read before a connection broke.
	s.CutConnections()
	s.PublishBatch(one, fakebroker.None, batch(3, 3)...)
	s.PublishBatch(topic+"-partition-0", fakebroker.None, batch(6, 1)...)
	require.ElementsMatch(t, inOrder(3, 4), texts(toEnd(t, r)))

	alone := openReader(t, client, func(c *messaging.ReaderConfig) { c.Topic = one })
	all := toEnd(t, alone)
	require.Equal(t, inOrder(0, 6), texts(all))
	require.Equal(t, 3, all[0].Partition)
	require.Equal(t, 3, all[0].ID.Partition())
}

func TestReaderFromATime(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	began := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for i := range 20 {
		s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i)), PublishTime: began.Add(time.Duration(i) * time.Minute)})
	}
	r := openReader(t, client, from(messaging.AtTime(began.Add(5*time.Minute))))
	require.Equal(t, inOrder(5, 15), texts(toEnd(t, r)))
	r = openReader(t, client, from(messaging.AtTime(began.Add(24*time.Hour))))
	require.True(t, caughtUp(r), "nothing is as young")
	s.Publish(topic, fakebroker.Message{Payload: []byte("20"), PublishTime: began.Add(25 * time.Hour)})
	require.Equal(t, inOrder(20, 1), texts(toEnd(t, r)))
}

func TestReaderFromAMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	one := topic + "-partition-1"
	for i := range 4 {
		s.PublishBatch(one, fakebroker.None, batch(5*i, 5)...)
	}
	all := toEnd(t, openReader(t, client, nil))
	ofOne := func(at messaging.Position) func(*messaging.ReaderConfig) {
		return func(c *messaging.ReaderConfig) {
			from(at)(c)
			c.Topic = one
		}
	}
	r := openReader(t, client, ofOne(messaging.AtMessage(all[12].ID)))
	require.False(t, caughtUp(r))
	require.Len(t, r.Positions(), 1)
	s.CutConnections() // before anything was read
	require.Equal(t, inOrder(10, 10), texts(toEnd(t, r)), "with the whole of its batch")
	require.Equal(t, inOrder(0, 20), texts(toEnd(t, openReader(t, client, ofOne(messaging.AtMessage(all[0].ID))))))
	require.Len(t, toEnd(t, openReader(t, client, ofOne(messaging.Earliest()))), 20)
	require.Empty(t, toEnd(t, openReader(t, client, ofOne(messaging.Latest()))))

	behind := openReader(t, client, func(c *messaging.ReaderConfig) {
		ofOne(messaging.AtMessage(all[2].ID))(c)
		c.After = []messaging.MessageID{all[12].ID}
	})
	require.Equal(t, inOrder(13, 7), texts(toEnd(t, behind)), "a position that was kept comes first")

	at := messaging.AtMessage(all[0].ID)
	_, err := client.Reader(testContext(t), messaging.ReaderConfig{Topic: topic, From: &at})
	require.ErrorContains(t, err, "2 partitions")
	at = messaging.AtMessage(messaging.MessageID{})
	_, err = client.Reader(testContext(t), messaging.ReaderConfig{Topic: one, From: &at})
	require.ErrorContains(t, err, "from: ")
}

// Connections are cut, consumers closed, and subscribing refused or not answered, in the
// middle of batches: each message comes once.
func TestReaderGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	const n = 3000
	published := 0
	for published < n {
		size := min(1+rand.IntN(50), n-published)
		s.PublishBatch(topic, fakebroker.None, batch(published, size)...)
		published += size
	}
	r := openReader(t, client, func(c *messaging.ReaderConfig) {
		c.PrefetchBytes, c.MaxMessageBytes = 1<<20, 1<<20/20 // twenty messages ahead
	})
	faults := []func(){
		func() { s.CutConnections() },
		func() { s.CloseConsumers(topic) },
		func() {
			s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
			s.CloseConsumers(topic)
		},
		func() {
			s.FailLookup(topic, fakebroker.ServiceNotReady, 1)
			s.CutConnections()
		},
		func() { s.DuplicateDispatch(topic, 3) },
	}
	for i := range n {
		if i%100 == 50 {
			faults[i/100%len(faults)]()
		}
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), string(d.Payload))
	}
	require.Empty(t, toEnd(t, r), "nothing twice")
}

// A subscription that is never answered is given up.
func TestReaderSubscribingHangs(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dialImpatient(t, s.URL(), time.Second)
	s.Publish(topic, batch(0, 3)...)
	r := openReader(t, client, nil)
	require.Equal(t, inOrder(0, 3), texts(toEnd(t, r)))
	never := s.Ignore(fakebroker.OpSubscribe, topic, 1)
	s.CloseConsumers(topic)
	require.NoError(t, never.Wait(testContext(t), 1))
	s.Publish(topic, batch(3, 3)...)
	for i := range 3 {
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(3+i), string(d.Payload))
	}
}

// A reader that cannot go on says so, and its metrics do.
func TestReaderUnhealthy(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	s.Publish(topic, batch(0, 3)...)
	r := openReader(t, client, func(c *messaging.ReaderConfig) { c.Name = "state" })
	require.Equal(t, inOrder(0, 3), texts(toEnd(t, r)))
	require.NoError(t, r.Unhealthy())
	require.Equal(t, 3, counted(t, reg, "aviary_messaging_reader_messages_total", "state"))
	require.Equal(t, 3, counted(t, reg, "aviary_messaging_reader_bytes_total", "state"))

	refused := s.FailSubscribe(topic, fakebroker.ConsumerBusy, -1)
	s.CloseConsumers(topic)
	eventually(t, "the broker refuses it", func() bool {
		return counted(t, reg, "aviary_messaging_reader_resubscribes_total", "state", "busy") > 0
	})
	require.ErrorContains(t, r.Unhealthy(), topic)
	require.ErrorContains(t, r.Unhealthy(), "ConsumerBusy")
	require.Equal(t, 1, counted(t, reg, "aviary_messaging_reader_resubscribes_total", "state", "connection"))
	require.Equal(t, 1, counted(t, reg, "aviary_messaging_reader_interrupted_partitions", "state"))
	refused.Remove()
	s.Publish(topic, batch(3, 1)...)
	_, err := r.Next(testContext(t))
	require.NoError(t, err)
	require.NoError(t, r.Unhealthy())
	require.Zero(t, counted(t, reg, "aviary_messaging_reader_interrupted_partitions", "state"))

	s.FailSubscribe(topic, fakebroker.ConsumerBusy, -1)
	s.CloseConsumers(topic)
	eventually(t, "unhealthy again", func() bool { return r.Unhealthy() != nil })
	require.NoError(t, r.Close(testContext(t)))
	require.NoError(t, r.Unhealthy())
	require.Zero(t, counted(t, reg, "aviary_messaging_reader_interrupted_partitions", "state"), "nothing is left behind")
}

func TestReaderFindsNewPartitions(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 1)
	client := dial(t, s.URL())
	client.SetReadersDiscoverEvery(time.Millisecond)
	r := openReader(t, client, from(messaging.Latest()))
	s.CreateTopic(topic, 3)
	s.PublishBatch(topic+"-partition-2", fakebroker.None, batch(0, 2)...)
	for i := range 2 {
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), string(d.Payload), "from its beginning")
	}
}

// One id of a message, whoever names it.
func TestMessageIDsAreEqual(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 2)
	client := dial(t, s.URL())
	one := topic + "-partition-1"
	p := open(t, client, one, entries)
	published := make(map[messaging.MessageID]bool)
	for _, rs := range [][]*messaging.Record{{record(0)}, {record(1), record(2), record(3)}} {
		id, err := inside.StoreEntry(testContext(t), p, nil, rs...)
		require.NoError(t, err)
		published[id] = true
	}
	last, err := client.Last(testContext(t), one)
	require.NoError(t, err)
	require.True(t, published[last.ID])
	for _, name := range []string{topic, one} {
		read := 0
		for _, d := range toEnd(t, openReader(t, client, func(c *messaging.ReaderConfig) { c.Topic = name })) {
			if published[d.ID] {
				read++
			}
		}
		require.Equal(t, 2, read, name)
		var got consumed
		cfg := consumerConfig(name, messaging.Exclusive)
		cfg.Subscription = name[len(name)-1:]
		run := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
			got.add(d)
			return nil
		})
		eventually(t, "consumed", func() bool { return got.distinct() == 4 })
		run.stop(t)
		for _, d := range got.snapshot() {
			if published[d.ID] {
				read--
			}
		}
		require.Zero(t, read, name)
	}
}

func TestReaderEnds(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL(), OperationTimeout: await.Patience})
	require.NoError(t, err)
	for name, cfg := range map[string]messaging.ReaderConfig{
		"no topic":     {},
		"zero id":      {Topic: topic, After: []messaging.MessageID{{}}},
		"negative":     {Topic: topic, PrefetchBytes: -1, MaxMessageBytes: -1},
		"tenant alone": {Topic: "persistent://public/"},
	} {
		_, err := client.Reader(testContext(t), cfg)
		require.Error(t, err, name)
	}
	s.Publish(topic, batch(0, 3)...)
	r, err := client.Reader(testContext(t), messaging.ReaderConfig{Topic: topic})
	require.NoError(t, err)
	boom := errors.New("boom")
	n, err := r.ReadToEnd(testContext(t), func(context.Context, *messaging.Delivery) error { return boom })
	require.ErrorIs(t, err, boom)
	require.Equal(t, 1, n)
	require.Equal(t, inOrder(1, 2), texts(toEnd(t, r)), "what failed counts as read")

	waiting := make(chan error, 1)
	go func() {
		_, err := r.Next(context.Background())
		waiting <- err
	}()
	require.NotEmpty(t, s.Consumers(topic, ""))
	require.NoError(t, r.Close(testContext(t)))
	require.ErrorIs(t, <-waiting, messaging.ErrClosed)
	require.Empty(t, s.Consumers(topic, ""), "the broker has heard of it")
	require.NoError(t, r.Close(testContext(t)), "again")

	r, err = client.Reader(testContext(t), messaging.ReaderConfig{Topic: topic})
	require.NoError(t, err)
	require.NoError(t, client.Close(testContext(t)), "it ends with its client")
	for err == nil {
		_, err = r.Next(testContext(t))
	}
	require.ErrorIs(t, err, messaging.ErrClosed)
	_, err = client.Reader(testContext(t), messaging.ReaderConfig{Topic: topic})
	require.ErrorIs(t, err, messaging.ErrClosed)
}

// Nobody reads: what the broker has sent ahead is bounded in bytes.
func TestReaderPrefetchIsBounded(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	const size, messages = 64 << 10, 200
	for i := range messages {
		payload := make([]byte, size)
		copy(payload, strconv.Itoa(i))
		s.Publish(topic, fakebroker.Message{Payload: payload})
	}
	for _, ahead := range []int{1, 10} {
		r := openReader(t, client, func(c *messaging.ReaderConfig) {
			c.PrefetchBytes, c.MaxMessageBytes = int64(ahead*size), size
		})
		// One message is on its way to Next, one is at the client's dispatcher; and permits are
		// renewed when half of them are used.
		full := func() bool {
			all := s.Consumers(topic, "")
			return len(all) == 1 && all[0].Dispatched >= ahead && all[0].Permits <= 0
		}
		require.NoError(t, s.Until(testContext(t), full))
		require.LessOrEqual(t, s.Consumers(topic, "")[0].Dispatched, 2*ahead+2)
		require.Len(t, toEnd(t, r), messages)
		require.NoError(t, r.Close(testContext(t)))
	}
}

// The underlying client drops a batch whose checksum is wrong, and asks for too little: what is
// behind it comes all the same, and all of the batch when it was wrong only once.
func TestReaderGoesOnBehindABatchWithAWrongChecksum(t *testing.T) {
	t.Parallel()
	for name, always := range map[string]bool{"once": false, "always": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			reg := prometheus.NewRegistry()
			client := dial(t, s.URL(), messaging.WithRegisterer(reg))
			client.HurryReaders(10)
			first, sessions := 0, 1
			if always {
				s.PublishRaw(topic, messaging.WrongChecksum(), 100)
				first, sessions = 100, 2*2 // the second one's queue is long enough, and the usual one is tried again
			} else {
				s.PublishBatch(topic, fakebroker.None, batch(0, 100)...)
				s.CorruptDispatch(topic, 1)
			}
			s.Publish(topic, batch(100, 20)...)
			r := openReader(t, client, func(c *messaging.ReaderConfig) { c.Name = "state" })
			require.Equal(t, inOrder(first, 120-first), texts(toEnd(t, r)))
			require.Equal(t, sessions, counted(t, reg, "aviary_messaging_reader_resubscribes_total", "state", "silent"))
		})
	}
}
