package pulsar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// numbered is the message at an offset of a Kafka partition.
func numbered(partition int32, offset int64) *message.Message {
	return &message.Message{
		Key: []byte("p" + strconv.Itoa(int(partition))), Value: []byte(strconv.FormatInt(offset, 10)),
		Origin: message.Origin{System: "kafka", Cluster: "main", Topic: "orders", Partition: partition, Offset: offset},
		Hops:   []string{"bridge"},
		From:   message.From{Topic: "orders", Partition: partition, Offset: offset},
	}
}

func exactly(url string) func(*SinkConfig) {
	return func(c *SinkConfig) {
		c.URL, c.Guarantee, c.Partition = url, effectivelyOnce, partitionSource
	}
}

// deduplicate enables deduplication for a namespace, as an operator does.
func deduplicate(t *testing.T, srv *stack.PulsarServer, ns string) {
	t.Helper()
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	// Topics need their last message: nothing else keeps it.
	require.NoError(t, srv.Admin(testContext(t), "POST", "/admin/v2/namespaces/"+ns+"/retention",
		map[string]int{"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}, nil))
}

func TestResumeKnowsWhatIsStored(t *testing.T) {
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	deduplicate(t, srv, ns)
	topic := srv.Topic(t, ns, 2)
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	_, ok, err := sink.Resume(testContext(t), topic, 1, "orders")
	require.NoError(t, err)
	require.False(t, ok)
	for i := range int64(10) {
		require.NoError(t, send(t, sink, topic, numbered(1, 2*i))) // offsets have gaps
	}
	offset, ok, err := sink.Resume(testContext(t), topic, 1, "orders")
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 18, offset)
	sinking.stop(t)

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	offset, ok, err = sink.Resume(testContext(t), topic, 1, "orders")
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
		reason, _ := lane.Refused(send(t, sink, topic, bad.m))
		require.Equal(t, bad.reason, reason)
	}
	sinking.stop(t)
	got := read(t, dial(t, messaging.Config{URL: srv.URL()}), topic)
	require.Len(t, got, 10+11)
}

// Another process takes a partition over once this one has released it.
func TestReleaseHandsOver(t *testing.T) {
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	deduplicate(t, srv, ns)
	topic := srv.Topic(t, ns, 1)
	one, oneRunning := startSink(t, srv.URL(), exactly(srv.URL()))
	two, twoRunning := startSink(t, srv.URL(), exactly(srv.URL()))
	require.NoError(t, send(t, one, topic, numbered(0, 1)))
	waiting := make(chan error, 1)
	two.Send(testContext(t), topic, numbered(0, 1), func(err error) { waiting <- err })
	require.Never(t, func() bool { return len(waiting) > 0 }, 200*time.Millisecond, 10*time.Millisecond, "while the first has it")
	one.Release(topic, 0)
	began := time.Now()
	require.NoError(t, <-waiting)
	require.NoError(t, send(t, two, topic, numbered(0, 2)))
	require.Less(t, time.Since(began), 3*time.Second)
	oneRunning.stop(t)
	twoRunning.stop(t)
	require.Len(t, read(t, dial(t, messaging.Config{URL: srv.URL()}), topic), 2)
}

// bridge is a process that replicates the partitions of a topic of Kafka, as far as
// the sink can see.
type bridge struct {
	sink    *Sink
	sinking *running
	lanes   []*lane.Lane
	stop    context.CancelFunc
	fed     sync.WaitGroup
}

// begin offers each partition's messages from its committed offset on.
func begin(t *testing.T, url, topic string, committed []atomic.Int64, stored *atomic.Int64) *bridge {
	t.Helper()
	b := new(bridge)
	cfg := DefaultSinkConfig()
	exactly(url)(&cfg)
	cfg.ListenerName = proxy.Listener
	cfg.CloseTimeout = time.Millisecond // it is killed: nothing is waited for
	cfg.Profile.AckTimeout = 3 * time.Second
	var err error
	b.sink, err = NewSink(cfg, Options{})
	require.NoError(t, err)
	b.sinking = start(t, b.sink.Run)
	lanes := lanesTo(b.sink, topic)
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	t.Cleanup(b.stop)
	for p := range committed {
		l := lanes.Open(fmt.Sprintf("orders/%d", p), func(position int64) error {
			stored.Add(position - committed[p].Swap(position))
			return nil
		})
		b.lanes = append(b.lanes, l)
		b.fed.Go(func() {
			// A group's committed offset lags behind the watermark.
			from := max(committed[p].Load()+1-rand.Int64N(500), 0)
			for offset := from; ctx.Err() == nil; offset++ {
				if l.Offer(ctx, numbered(int32(p), offset), offset) != nil {
					return
				}
				if offset%50 == 0 {
					time.Sleep(time.Millisecond) // keeps the volume small
				}
			}
		})
	}
	return b
}

// kill ends it in the middle of everything.
func (b *bridge) kill(t *testing.T) {
	t.Helper()
	for _, l := range b.lanes {
		l.Abandon()
	}
	b.stop()
	b.fed.Wait()
	b.sinking.stop(t)
}

// TestEffectivelyOnce breaks everything under load, and counts at the destination.
func TestEffectivelyOnce(t *testing.T) {
	// A connection that was cut can stay open on the broker's side, with the exclusive
	// producer on it, until the broker finds that nobody answers: 30 to 60 s by default.
	url, srv, line := proxy.Pulsar(t, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=256m"),
		stack.Conf(map[string]string{"keepAliveIntervalSeconds": "2"}))
	ns := srv.Namespace(t)
	deduplicate(t, srv, ns)
	const partitions = 2
	topic := srv.Topic(t, ns, partitions)
	committed := make([]atomic.Int64, partitions)
	for p := range committed {
		committed[p].Store(-1)
	}
	var stored atomic.Int64
	whole := t // what begins in a part of the test goes on in the next
	b := begin(whole, url, topic, committed, &stored)
	more := func(t *testing.T, n int64) {
		t.Helper()
		for p := range committed { // neither may be left behind
			want := committed[p].Load() + n/2
			on := func() bool { return committed[p].Load() >= want }
			for range 4 {
				for began := time.Now(); !on() && time.Since(began) < 10*time.Second; {
					time.Sleep(time.Millisecond)
				}
				if on() {
					break
				}
				// A sink that ends here while its client connects anew leaves the client's
				// producer behind on the broker, as pulsar-client-go v0.21.0 does (a
				// producer that is closed while it reconnects registers itself
				// nevertheless). With a process its connections would end.
				t.Log("cutting connections left behind: ", b.sink.trouble())
				line.Cut()
				require.NoError(t, line.Restore())
			}
			require.True(t, on(), "it goes on by itself")
		}
	}
	more(t, 1000)
	for _, fault := range []struct {
		name   string
		times  int
		strike func(t *testing.T)
	}{
		{"killed", 10, func(t *testing.T) {
			t.Helper()
			b.kill(t)
			b = begin(whole, url, topic, committed, &stored)
		}},
		{"connections cut", 10, func(t *testing.T) {
			t.Helper()
			line.Cut()
			require.NoError(t, line.Restore())
		}},
		{"connections cut and killed", 5, func(t *testing.T) {
			t.Helper()
			line.Cut()
			b.kill(t)
			require.NoError(t, line.Restore())
			b = begin(whole, url, topic, committed, &stored)
		}},
		{"topic unloaded", 5, func(t *testing.T) {
			t.Helper()
			srv.Unload(t, topic)
		}},
		{"silence", 1, func(t *testing.T) {
			t.Helper()
			require.NoError(t, line.Silence())
			// What was answered already arrives for a moment.
			require.Eventually(t, func() bool {
				before := stored.Load()
				time.Sleep(500 * time.Millisecond)
				return stored.Load() == before
			}, 5*time.Second, time.Millisecond)
			before := stored.Load()
			require.Never(t, func() bool { return stored.Load() > before }, 5*time.Second, 100*time.Millisecond)
			line.Cut()
			line.Heal()
			require.NoError(t, line.Restore())
		}},
		{"broker killed", 2, func(t *testing.T) {
			t.Helper()
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(testContext(t)))
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for range fault.times {
				fault.strike(t)
				more(t, 500+rand.Int64N(1000))
			}
		})
	}
	b.kill(t)

	client := dial(t, messaging.Config{URL: srv.URL()})
	for p := range committed {
		all := read(t, client, fmt.Sprintf("%s-partition-%d", topic, p))
		duplicates, gaps, next := 0, 0, int64(0)
		for _, d := range all {
			at, ok := message.Place(d.Properties)
			require.True(t, ok)
			switch {
			case at.Offset < next:
				duplicates++
				t.Logf("partition %d: after %d came %d again, %s", p, next-1, at.Offset, d.ID)
			case at.Offset > next:
				gaps++
				t.Logf("partition %d: %d to %d are missing before %s", p, next, at.Offset-1, d.ID)
			}
			next = at.Offset + 1
		}
		t.Logf("partition %d: %d messages, %d committed", p, len(all), committed[p].Load()+1)
		require.Zero(t, duplicates, "duplicated")
		require.Zero(t, gaps, "lost or out of order")
		require.Greater(t, next, committed[p].Load(), "what was committed is stored")
	}
}

// What somebody else put behind our last message hides it: then deduplication knows.
func TestDeduplicationKnowsWhatIsStored(t *testing.T) {
	srv := stack.Pulsar(t)
	ns := srv.Namespace(t)
	deduplicate(t, srv, ns)
	topic := srv.Topic(t, ns, 1)
	sink, sinking := startSink(t, srv.URL(), exactly(srv.URL()))
	for i := range int64(10) {
		require.NoError(t, send(t, sink, topic, numbered(0, i)))
	}
	sinking.stop(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	publish(t, client, topic, 0, 1, false)

	sink, sinking = startSink(t, srv.URL(), exactly(srv.URL()))
	_, ok, err := sink.Resume(testContext(t), topic, 0, "orders")
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

// A lane that is opened anew sends what the one before had under way. That is not
// stored before it is.
func TestTheSameAgainWaitsForItsOutcome(t *testing.T) {
	srv := stack.PrivatePulsar(t)
	ns := srv.Namespace(t)
	deduplicate(t, srv, ns)
	topic := srv.Topic(t, ns, 1)
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
	reason, _ := lane.Refused(send(t, sink, topic, m))
	require.Equal(t, "too_large", reason)
	require.Never(t, func() bool { return len(outcomes) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, srv.Resume())
	for range cap(outcomes) {
		require.NoError(t, <-outcomes)
	}
	sinking.stop(t)
	require.Len(t, read(t, dial(t, messaging.Config{URL: srv.URL()}), topic), 4)
}
