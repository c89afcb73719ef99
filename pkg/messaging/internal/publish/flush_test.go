package publish

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// fakeClient stands for the underlying client: its producers gather records until
// they are flushed, and acknowledge each entry after roundTrip.
type fakeClient struct {
	pulsar.Client
	topics    []string
	roundTrip time.Duration
	lose      func(payload string) bool // its callback never comes

	mu        sync.Mutex
	entries   [][]string
	producers int
}

func (c *fakeClient) TopicPartitions(string) ([]string, error) { return c.topics, nil }

func (c *fakeClient) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.producers++
	return &fakeProducer{c: c}, nil
}

// stored returns the entries so far.
func (c *fakeClient) stored() [][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries
}

type fakeSend struct {
	msg  *pulsar.ProducerMessage
	done func(pulsar.MessageID, *pulsar.ProducerMessage, error)
}

type fakeProducer struct {
	pulsar.Producer
	c        *fakeClient
	gathered []fakeSend // c.mu guards it
}

func (p *fakeProducer) SendAsync(ctx context.Context, m *pulsar.ProducerMessage, done func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	if err := ctx.Err(); err != nil {
		done(nil, m, err)
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.gathered = append(p.gathered, fakeSend{m, done})
}

func (p *fakeProducer) FlushWithCtx(ctx context.Context) error {
	p.c.mu.Lock()
	sent := p.gathered
	p.gathered = nil
	if len(sent) > 0 {
		var entry []string
		for _, s := range sent {
			entry = append(entry, string(s.msg.Payload))
		}
		p.c.entries = append(p.c.entries, entry)
	}
	p.c.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.c.roundTrip):
	}
	for _, s := range sent {
		if p.c.lose == nil || !p.c.lose(string(s.msg.Payload)) {
			s.done(pulsar.NewMessageID(1, 1, 0, 0), s.msg, nil)
		}
	}
	return nil
}

func (p *fakeProducer) Close() {}

// publishing opens a publisher over n partitions of raw.
func publishing(t *testing.T, raw *fakeClient, n int, profile Profile) *Publisher {
	t.Helper()
	for i := range n {
		raw.topics = append(raw.topics, "persistent://public/default/t-partition-"+strconv.Itoa(i))
	}
	shared := &cluster.Cluster{
		Log: zap.NewNop(), Producers: raw, OperationTimeout: time.Second, Life: context.Background(),
		Reach: cluster.NewConnectivity(context.Background(), nil, time.Second),
	}
	c := NewPublishers(shared, nil, prometheus.NewRegistry())
	profile.Routing = RouteExplicit
	p, err := c.Open(t.Context(), "t", profile)
	require.NoError(t, err)
	return p
}

// published counts the records whose outcome is known.
type published struct {
	t  *testing.T
	wg sync.WaitGroup
}

func (o *published) send(p *Publisher, partition int, payload string) {
	o.wg.Add(1)
	p.PublishAsync(context.Background(), &record.Record{Partition: partition, Payload: []byte(payload)}, func(_ record.MessageID, err error) {
		assert.NoError(o.t, err)
		o.wg.Done()
	})
}

// A lone record is sent at once, whatever the linger; what comes while it is under way gathers,
// and is sent when it is acknowledged, or when it has gathered for the linger.
func TestRecordsGatherWhileOneIsInFlight(t *testing.T) {
	for _, profile := range []Profile{Business(), Ops()} {
		for linger, want := range map[time.Duration]time.Duration{time.Hour: 40 * time.Millisecond, 5 * time.Millisecond: 26 * time.Millisecond} {
			t.Run(profile.Name+"/"+linger.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					raw := &fakeClient{roundTrip: 20 * time.Millisecond}
					profile := profile
					profile.Linger = linger
					p := publishing(t, raw, 1, profile)
					o := &published{t: t}
					began := time.Now()
					o.send(p, 0, "lone")
					o.wg.Wait()
					require.Equal(t, raw.roundTrip, time.Since(began))

					began = time.Now()
					o.send(p, 0, "first")
					time.Sleep(time.Millisecond)
					for i := range 3 {
						o.send(p, 0, strconv.Itoa(i))
					}
					o.wg.Wait()
					require.Equal(t, want, time.Since(began))
					require.Equal(t, [][]string{{"lone"}, {"first"}, {"0", "1", "2"}}, raw.stored())
					require.NoError(t, p.Close(context.Background()))
				})
			})
		}
	}
}

// With many partitions entries grow, and their number does not: under the same load as many
// entries are stored over 64 partitions as over 16, and each partition keeps its order.
func TestEntriesDoNotGrowWithPartitions(t *testing.T) {
	const rounds, perRound = 200, 64
	entries := map[int]int{}
	for _, n := range []int{16, 64} {
		synctest.Test(t, func(t *testing.T) {
			raw := &fakeClient{roundTrip: 3 * time.Millisecond}
			p := publishing(t, raw, n, Ops())
			o := &published{t: t}
			next := 0
			for range rounds {
				for range perRound {
					o.send(p, next%n, strconv.Itoa(next))
					next++
				}
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, p.Flush(context.Background()))
			o.wg.Wait()
			last := make(map[int]int)
			for _, entry := range raw.stored() {
				for _, payload := range entry {
					i, err := strconv.Atoi(payload)
					require.NoError(t, err)
					if before, ok := last[i%n]; ok {
						require.Equal(t, before+n, i, "in order, and none left out")
					}
					last[i%n] = i
				}
			}
			for i := range n {
				require.Equal(t, next-n+i, last[i])
			}
			entries[n] = len(raw.stored())
			require.NoError(t, p.Close(context.Background()))
		})
	}
	require.LessOrEqual(t, float64(entries[64]), 1.3*float64(entries[16]), entries)
}

// A record whose callback the client has lost is noticed, although others are acknowledged all
// the time, and sent again; nobody else's is.
func TestLostCallbackBehindOthersProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw := &fakeClient{roundTrip: 10 * time.Millisecond}
		var lost atomic.Bool
		raw.lose = func(payload string) bool { return payload == "lost" && lost.CompareAndSwap(false, true) }
		profile := Business()
		profile.AckTimeout = 10 * time.Second
		p := publishing(t, raw, 1, profile)
		began := time.Now()
		outcome := make(chan time.Duration, 1)
		p.PublishAsync(t.Context(), &record.Record{Payload: []byte("lost")}, func(id record.MessageID, err error) {
			assert.NoError(t, err)
			assert.True(t, id.SentAgain())
			outcome <- time.Since(began)
		})
		others := 0
		for len(outcome) == 0 && time.Since(began) < time.Minute {
			require.NoError(t, p.Publish(t.Context(), &record.Record{Payload: []byte("other")}))
			others++
			time.Sleep(100 * time.Millisecond)
		}
		require.Less(t, <-outcome, 20*time.Second)
		seen := map[string]int{}
		for _, entry := range raw.stored() {
			for _, payload := range entry {
				seen[payload]++
			}
		}
		require.Equal(t, map[string]int{"lost": 2, "other": others}, seen)
		require.NoError(t, p.Close(context.Background()))
	})
}

// Partitions that publish nothing are not looked after.
func TestIdlePartitionsAreNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw := &fakeClient{roundTrip: time.Millisecond}
		p := publishing(t, raw, 100, Ops())
		o := &published{t: t}
		for i := range 100 {
			o.send(p, i, "x")
		}
		o.wg.Wait()
		require.Equal(t, 100, p.parent.watcher.count())
		time.Sleep(time.Minute)
		require.Zero(t, p.parent.watcher.count())
		require.NoError(t, p.Close(context.Background()))
	})
}
