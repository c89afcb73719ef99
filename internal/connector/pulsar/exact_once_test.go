package pulsar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// bridge is a process that replicates the partitions of a topic of Kafka, as far as
// the sink can see.
type bridge struct {
	sink      *Sink
	sinking   *running
	pipelines []*pipeline.Pipeline
	stop      context.CancelFunc
	fed       sync.WaitGroup
}

// begin offers each partition's messages from its committed offset on.
func begin(t *testing.T, random *rand.Rand, url, topic string, committed []atomic.Int64, stored *atomic.Int64) *bridge {
	t.Helper()
	b := new(bridge)
	cfg := DefaultSinkConfig()
	exactly(url)(&cfg)
	cfg.ListenerName = proxy.Listener
	cfg.CloseTimeout = time.Millisecond // it is killed: nothing is waited for
	cfg.Profile.AckTimeout = 3 * time.Second
	b.sink = cfg.NewSink(connector.Options{}).(*Sink)
	b.sinking = start(t, b.sink.Run)
	pipelines := pipelinesTo(b.sink, topic)
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	t.Cleanup(b.stop)
	for p := range committed {
		l := pipelines.Open(fmt.Sprintf("orders/%d", p), func(position int64) error {
			stored.Add(position - committed[p].Swap(position))
			return nil
		})
		b.pipelines = append(b.pipelines, l)
		// A group's committed offset lags behind the watermark.
		lag := random.Int64N(500)
		b.fed.Go(func() {
			from := max(committed[p].Load()+1-lag, 0)
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
	for _, l := range b.pipelines {
		l.Abandon()
	}
	b.stop()
	b.fed.Wait()
	b.sinking.stop(t)
}

// opening reports that it is unknown, for every partition, what is stored.
func (b *bridge) opening() bool {
	b.sink.mu.RLock()
	defer b.sink.mu.RUnlock()
	for _, w := range b.sink.writers {
		w.mu.Lock()
		open := w.phase == phaseOpen
		w.mu.Unlock()
		if open {
			return false
		}
	}
	return len(b.sink.writers) == len(b.pipelines)
}

// AVIARY_PIGEONHOLE_SECONDS asks for the long form of TestEffectivelyOnce. AVIARY_PIGEONHOLE_SEED
// is the seed of where it begins again and of how much is stored between faults. Without it, it is
// a new one in the long form.
const (
	seconds = "AVIARY_PIGEONHOLE_SECONDS"
	seedOf  = "AVIARY_PIGEONHOLE_SEED"
)

func seed(t *testing.T) (n uint64) {
	t.Helper()
	n = 1
	if text := os.Getenv(seedOf); text != "" {
		var err error
		n, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedOf)
	} else if os.Getenv(seconds) != "" {
		n = rand.Uint64()
	}
	t.Logf("%s=%d", seedOf, n)
	return n
}

// TestEffectivelyOnce breaks everything under load, and counts at the destination.
func TestEffectivelyOnce(t *testing.T) {
	t.Parallel()
	// A connection that was cut can stay open on the broker's side, with the exclusive
	// producer on it, until the broker finds that nobody answers: 30 to 60 s by default.
	url, srv, line := proxy.Pulsar(t, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=256m"),
		stack.Conf(map[string]string{"keepAliveIntervalSeconds": "2"}))
	const partitions = 2
	topic := deduplicated(t, srv, partitions)
	committed := make([]atomic.Int64, partitions)
	for p := range committed {
		committed[p].Store(-1)
	}
	var stored atomic.Int64
	whole := t // what begins in a part of the test goes on in the next
	random := rand.New(rand.NewPCG(seed(t), 0))
	b := begin(whole, random, url, topic, committed, &stored)
	more := func(t *testing.T, n int64) {
		t.Helper()
		for p := range committed { // neither may be left behind
			want := committed[p].Load() + n/2
			on := func() bool { return committed[p].Load() >= want }
			for wait := 10 * time.Second; wait < await.Patience; wait *= 2 {
				for began := time.Now(); !on() && time.Since(began) < wait; {
					time.Sleep(time.Millisecond)
				}
				if on() {
					break
				}
				// A sink that ends here while its client connects anew leaves the client's
				// producer behind on the broker, as pulsar-client-go v0.21.0 does (a
				// producer that is closed while it reconnects registers itself
				// nevertheless). With a process its connections would end.
				t.Log("cutting connections left behind: ", b.sink.healthError())
				line.Cut()
				require.NoError(t, line.Restore())
			}
			require.True(t, on(), "it goes on by itself")
		}
	}
	more(t, 1000)
	for _, fault := range []struct {
		name        string
		times, long int
		strike      func(t *testing.T)
	}{
		{"killed", 3, 10, func(t *testing.T) {
			t.Helper()
			b.kill(t)
			b = begin(whole, random, url, topic, committed, &stored)
		}},
		{"connections cut", 3, 10, func(t *testing.T) {
			t.Helper()
			line.Cut()
			require.NoError(t, line.Restore())
		}},
		{"connections cut and killed", 2, 5, func(t *testing.T) {
			t.Helper()
			line.Cut()
			b.kill(t)
			require.NoError(t, line.Restore())
			b = begin(whole, random, url, topic, committed, &stored)
		}},
		{"topic unloaded", 2, 5, func(t *testing.T) {
			t.Helper()
			srv.Unload(t, topic)
		}},
		{"silence", 1, 1, func(t *testing.T) {
			t.Helper()
			require.NoError(t, line.Silence())
			// A writer counts what was answered before the silence once it gives up the entry
			// behind it, after AckTimeout at most.
			before := int64(-1)
			require.Eventually(t, func() bool {
				last := before
				before = stored.Load()
				return b.opening() && before == last
			}, await.Patience, 500*time.Millisecond)
			require.Never(t, func() bool { return stored.Load() > before }, time.Second, 100*time.Millisecond)
			line.Cut()
			line.Heal()
			require.NoError(t, line.Restore())
		}},
		{"broker killed", 1, 2, func(t *testing.T) {
			t.Helper()
			require.NoError(t, srv.Kill())
			require.NoError(t, srv.Start(testContext(t)))
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			times := fault.times
			if os.Getenv(seconds) != "" {
				times = fault.long
			}
			for range times {
				fault.strike(t)
				more(t, 500+random.Int64N(1000))
			}
		})
	}
	b.kill(t)

	client := dial(t, messaging.Config{URL: srv.URL()})
	for p := range committed {
		all := read(t, client, fmt.Sprintf("%s-partition-%d", topic, p))
		duplicates, gaps, next := 0, 0, int64(0)
		var before messaging.MessageID
		for _, d := range all {
			at, ok := message.Place(d.Properties)
			require.True(t, ok)
			switch {
			case at.Offset < next:
				duplicates++
				t.Logf("partition %d: after %d came %d again, %s", p, next-1, at.Offset, d.ID)
			case at.Offset > next:
				gaps++
				t.Logf("partition %d: %d to %d are missing between %s and %s", p, next, at.Offset-1, before, d.ID)
			}
			next, before = at.Offset+1, d.ID
		}
		t.Logf("partition %d: %d messages, %d committed", p, len(all), committed[p].Load()+1)
		if duplicates+gaps > 0 {
			t.Logf("read again, the partition has %d messages", len(read(t, client, fmt.Sprintf("%s-partition-%d", topic, p))))
		}
		require.Zero(t, duplicates, "duplicated")
		require.Zero(t, gaps, "lost or out of order")
		require.Greater(t, next, committed[p].Load(), "what was committed is stored")
	}
}
