package messaging_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// These tests break a real broker, or the way to it, under load, and count at the
// destination.

// flood publishes records of 7 keys without pause until stop is called, which
// returns how many there were after all of them have been acknowledged.
func flood(t *testing.T, p *messaging.Publisher) (acked *atomic.Int64, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	acked = new(atomic.Int64)
	var failed atomic.Int64
	count := make(chan int, 1)
	go func() {
		n := 0
		// A pause now and then keeps the volume small: the point is the fault.
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			for range 20 {
				p.PublishAsync(context.Background(), record(n), func(_ messaging.MessageID, err error) {
					if err == nil {
						acked.Add(1)
					} else {
						failed.Add(1)
					}
				})
				n++
			}
		}
		count <- n
	}()
	return acked, func() int {
		cancel()
		n := <-count
		flushing, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, p.Flush(flushing))
		require.EqualValues(t, n, acked.Load())
		require.Zero(t, failed.Load())
		return n
	}
}

// more waits until n further records have been acknowledged.
func more(t *testing.T, acked *atomic.Int64, n int64) {
	t.Helper()
	want := acked.Load() + n
	require.Eventually(t, func() bool { return acked.Load() >= want }, await.Patience, 5*time.Millisecond)
}

// readTopic returns every payload on a topic without partitions, with an
// independent client.
func readTopic(t *testing.T, url, topic string) []string {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Logger: pulsarlog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	defer client.Close()
	r, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	require.NoError(t, err)
	defer r.Close()
	var out []string
	for r.HasNext() {
		m, err := r.Next(testContext(t))
		require.NoError(t, err)
		out = append(out, string(m.Payload()))
	}
	return out
}

// requireOrderPerKey checks that of each key's records none is lost and none is
// first stored behind a later one. record(i) has key i%7.
func requireOrderPerKey(t *testing.T, payloads []string, n int) {
	t.Helper()
	next := [7]int{0, 1, 2, 3, 4, 5, 6}
	for _, p := range payloads {
		i, err := strconv.Atoi(p)
		require.NoError(t, err)
		require.LessOrEqual(t, i, next[i%7], "record %d was stored before record %d of its key", i, next[i%7])
		if i == next[i%7] {
			next[i%7] += 7
		}
	}
	for _, end := range next {
		require.GreaterOrEqual(t, end, n)
	}
}

// onTheWay is how many records' receipts may be read after the broker has fallen silent: those of
// some entries. In a second a broker that answers acknowledges many times that.
const onTheWay = 20_000

func TestBrokerFaults(t *testing.T) {
	t.Parallel()
	url, srv, line := faultyPulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: url, ListenerName: proxy.Listener})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close(ctx)) }()

	for _, fault := range []struct {
		name   string
		strike func(t *testing.T, topic string, acked *atomic.Int64)
	}{
		{"topic unloaded", func(t *testing.T, topic string, _ *atomic.Int64) {
			t.Helper()
			srv.Unload(t, topic)
		}},
		{"connections cut", func(t *testing.T, _ string, acked *atomic.Int64) {
			t.Helper()
			for range 5 {
				line.Cut()
				require.NoError(t, line.Restore())
				more(t, acked, 50)
			}
		}},
		{"slow narrow line", func(t *testing.T, _ string, acked *atomic.Int64) {
			t.Helper()
			require.NoError(t, line.Latency(50*time.Millisecond))
			require.NoError(t, line.Bandwidth(256))
			more(t, acked, 500)
			line.Heal()
		}},
		{"silence", func(t *testing.T, _ string, acked *atomic.Int64) {
			t.Helper()
			require.NoError(t, line.Silence())
			before := acked.Load()
			require.Never(t, func() bool { return acked.Load() > before+onTheWay }, time.Second, 100*time.Millisecond)
			line.Cut() // a connection that was silent has lost data: toxiproxy cannot heal it
			line.Heal()
			require.NoError(t, line.Restore())
		}},
		{"SIGSTOP", func(t *testing.T, _ string, acked *atomic.Int64) {
			t.Helper()
			require.NoError(t, srv.Pause())
			before := acked.Load()
			require.Never(t, func() bool { return acked.Load() > before+onTheWay }, time.Second, 100*time.Millisecond)
			require.NoError(t, srv.Resume())
		}},
		{"SIGKILL", func(t *testing.T, _ string, _ *atomic.Int64) {
			t.Helper()
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(ctx))
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			topic := srv.Topic(t, srv.Namespace(t), 0)
			p, err := client.Publisher(ctx, topic, messaging.Ops())
			require.NoError(t, err)
			acked, stop := flood(t, p)
			more(t, acked, 500)
			fault.strike(t, topic, acked)
			more(t, acked, 500)
			n := stop()
			require.NoError(t, p.Close(ctx))
			requireOrderPerKey(t, readTopic(t, srv.URL(), topic), n)
		})
	}
}

// An outage longer than the client's own timeout: records wait, the queue stays
// bounded, callers are told in time, and all goes on by itself.
func TestBrokerUnavailable(t *testing.T) {
	t.Parallel()
	_, srv, _ := faultyPulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: srv.URL(), OperationTimeout: 2 * time.Second})
	require.NoError(t, err)
	topic := srv.Topic(t, srv.Namespace(t), 0)
	profile := messaging.Ops()
	profile.MaxPendingRecords = 1000
	p, err := client.Publisher(ctx, topic, profile)
	require.NoError(t, err)
	closed, err := client.Publisher(ctx, topic+"-closed", profile)
	require.NoError(t, err)
	require.NoError(t, srv.Kill())

	var acked atomic.Int64
	for i := range 1000 {
		p.PublishAsync(ctx, record(i), func(_ messaging.MessageID, err error) {
			if err == nil {
				acked.Add(1)
			}
		})
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	require.ErrorIs(t, p.Publish(short, record(1000)), context.DeadlineExceeded, "the queue is full")
	eventually(t, "it is said why", func() bool {
		err := p.Unhealthy()
		return err != nil && strings.Contains(err.Error(), "connection refused")
	})
	require.EqualError(t, client.Unreachable(), "connect: connection refused", "without addresses")

	// Opening ends with its context: the operation timeout is much longer.
	other, err := messaging.Dial(ctx, messaging.Config{URL: srv.URL(), OperationTimeout: await.Patience})
	require.NoError(t, err)
	opening, cancelOpening := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelOpening()
	_, err = other.Publisher(opening, topic, profile)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, other.Close(ctx))

	// Close gives up with its context, and says how much it leaves.
	for i := range 100 {
		closed.PublishAsync(ctx, record(i), func(messaging.MessageID, error) {})
	}
	closing, cancelClosing := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelClosing()
	err = closed.Close(closing)
	var left *messaging.UnacknowledgedError
	require.ErrorAs(t, err, &left)
	require.Equal(t, 100, left.Count)

	require.NoError(t, srv.Start(ctx))
	require.NoError(t, p.Flush(ctx))
	require.EqualValues(t, 1000, acked.Load())
	requireOrderPerKey(t, readTopic(t, srv.URL(), topic), 1000)
	require.NoError(t, p.Close(ctx))
	require.NoError(t, client.Close(ctx))
}

// Ours and the plain client put a key on the same partition.
func TestKeyRoutingIsCompatible(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 5)
	ours := open(t, dial(t, srv.URL()), topic, nil)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: srv.URL(), Logger: pulsarlog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	defer client.Close()
	theirs, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: -1})
	require.NoError(t, err)
	defer theirs.Close()
	for _, key := range []string{"a", "key-17", "naïve", "日本", "a rather longer key, to wrap around the hash"} {
		got := make(chan int, 1)
		ours.PublishAsync(testContext(t), &messaging.Record{Key: key}, func(id messaging.MessageID, err error) {
			require.NoError(t, err)
			got <- id.Partition()
		})
		id, err := theirs.Send(testContext(t), &pulsar.ProducerMessage{Key: key, Payload: []byte{}})
		require.NoError(t, err)
		require.EqualValues(t, id.PartitionIdx(), <-got, key)
	}
}
