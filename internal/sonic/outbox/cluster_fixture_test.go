package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// clusterFixture is zone a, which has a Redis Cluster, and its topic. There is a zone b, too.
type clusterFixture struct {
	t         *testing.T
	redis     *stack.RedisCluster
	pulsar    *stack.PulsarServer
	primaries *primaries.Primaries
	topic     string
	client    *messaging.Client // of the test
	horizon   atomic.Pointer[wire.ID]
}

func newClusterFixture(t *testing.T, count, replicas int, conf ...string) *clusterFixture {
	t.Helper()
	w := &clusterFixture{t: t, pulsar: stack.Pulsar(t), redis: stack.PrivateRedisCluster(t, count, replicas, append(conf, "cluster-require-full-coverage no")...)}
	w.topic = "persistent://" + w.pulsar.Namespace(t) + "/sonic-a-0"
	w.client = w.dial()
	topology := cluster.New(cluster.Config{Addresses: w.redis.Addresses()}, zaptest.NewLogger(t))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	w.primaries = primaries.New(topology, func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second})
	})
	go func() { ended <- topology.Run(ctx) }()
	go func() { ended <- w.recoverB(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
		assert.NoError(t, <-ended)
		assert.NoError(t, w.primaries.Close())
	})
	return w
}

// recoverB stands for the applier of zone b, from which nothing comes.
func (w *clusterFixture) recoverB(ctx context.Context) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		m := w.primaries.Map()
		if m == nil {
			continue
		}
		for _, p := range m.Primaries() {
			db := w.primaries.At(p.Address)
			if state, err := db.Do(ctx, "FCALL", "sonic_primary", 0).StringSlice(); err == nil && len(state) == 6 && state[5] == "b" {
				_ = db.Do(ctx, "FCALL", "sonic_recovered", 0, "b", state[4]).Err()
			}
		}
	}
}

func (w *clusterFixture) dial() *messaging.Client {
	w.t.Helper()
	client, err := messaging.Dial(w.t.Context(), messaging.Config{URL: w.pulsar.URL()})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

// shipper runs a shipper until stop is called, which does not wait.
func (w *clusterFixture) shipper(client *messaging.Client) (s *ClusterShipper, stop func(), ended <-chan error) {
	w.t.Helper()
	s = w.newShipper(client)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		result <- s.Run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-finished
	})
	return s, cancel, result
}

func (w *clusterFixture) newShipper(client *messaging.Client) *ClusterShipper {
	return NewCluster(ClusterConfig{
		Config:  Config{Zone: "a", Topic: w.topic, Settings: "x=1"},
		Library: redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww", Bound: redislib.Bound{Bytes: 64 << 20}},
		Reached: func() map[string]uint64 { return map[string]uint64{"b": 7} },
		Horizon: func() wire.ID {
			if h := w.horizon.Load(); h != nil {
				return *h
			}
			return wire.ID{}
		},
	}, w.primaries, client, zaptest.NewLogger(w.t), NewMetrics(prometheus.NewRegistry()))
}

// owner has the topic, and does nothing with it.
func (w *clusterFixture) owner(client *messaging.Client) *clusterOwner {
	w.t.Helper()
	s := w.newShipper(client)
	writer, err := s.acquire(w.t.Context())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { s.release(writer) })
	return newClusterOwner(s, writer)
}

// set writes value to key at the primary of its slot. tx is the id of its transaction, or empty.
func (w *clusterFixture) set(ctx context.Context, key, value, tx string) error {
	mode := "0"
	if tx != "" {
		mode += "t" + tx
	}
	for {
		replies, err := w.primaries.Do(ctx, []primaries.Call{{Slot: cluster.Slot([]byte(key)), Function: "sonic_set", Args: []any{mode, key, value}}})
		if err != nil || !redislib.NotReady(replies[0].Err) && !redislib.NoFunction(replies[0].Err) {
			return errors.Join(err, firstErr(replies))
		}
		select {
		case <-time.After(5 * time.Millisecond): // no Sonic has opened the primary yet
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func firstErr(replies []primaries.Reply) error {
	for _, r := range replies {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// heard is what a reader of the topic has applied.
type heard struct {
	values    map[string][]string // by key, in order
	last      map[int]wire.ID     // by slot
	repeated  int                 // entries that came again
	messages  int
	parts     int
	watermark uint64
	header    *wire.Header // of the last message
}

// read reads the topic as an applier does. Chains may have no gap.
func (w *clusterFixture) read() *heard {
	w.t.Helper()
	h := &heard{values: map[string][]string{}, last: map[int]wire.ID{}}
	var parts bytes.Buffer
	position := int64(-1)
	err := topic.Read(w.t.Context(), w.client, w.topic, messaging.Earliest(), "a", func(_ context.Context, m *wire.Header, d *messaging.Delivery, err error) error {
		if err != nil {
			return err
		}
		if m.Position <= position || !m.Slots || m.Config != "x=1" || m.Reached["b"] != 7 || m.Watermark < h.watermark {
			return fmt.Errorf("a header after position %d and watermark %d: %+v", position, h.watermark, m)
		}
		position, h.header, h.watermark = m.Position, m, max(h.watermark, m.Watermark)
		h.messages++
		if m.Part == 1 {
			parts.Reset()
		}
		h.parts = max(h.parts, m.Parts)
		if parts.Write(d.Payload); m.Part < m.Parts {
			return nil
		}
		groups, err := wire.Groups(parts.Bytes())
		if err != nil {
			return err
		}
		for i := range groups {
			if err := h.apply(&groups[i]); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(w.t, err)
	return h
}

func (h *heard) apply(g *wire.PackedGroup) error {
	if g.Prev.Compare(h.last[g.Slot]) > 0 {
		return fmt.Errorf("slot %d has a gap: %s follows %s", g.Slot, g.Prev, h.last[g.Slot])
	}
	entries, err := wire.Entries(g.Entries)
	if err != nil {
		return err
	}
	for i := range entries {
		if entries[i].ID.Compare(h.last[g.Slot]) <= 0 {
			h.repeated++
			continue
		}
		effects, err := wire.Effects(entries[i].Effects)
		if err != nil {
			return err
		}
		for _, e := range effects {
			if key := e.Values[3]; e.Values[0] == "S" {
				if cluster.Slot([]byte(key)) != g.Slot {
					return fmt.Errorf("key %s in slot %d", key, g.Slot)
				}
				h.values[key] = append(h.values[key], e.Values[4])
			}
		}
	}
	h.last[g.Slot] = wire.Max(h.last[g.Slot], g.Last)
	return nil
}

// await waits until the topic has the last of the values of all keys, and checks that it has all of
// them in order. A write whose reply was lost may be there twice.
func (w *clusterFixture) await(written map[string][]string) (h *heard) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		h = w.read()
		for key, values := range written {
			if got := h.values[key]; len(got) == 0 || got[len(got)-1] != values[len(values)-1] {
				return false
			}
		}
		return true
	}, await.Patience, 100*time.Millisecond)
	for key, values := range written {
		var got []string
		for i, v := range h.values[key] {
			if i == 0 || v != h.values[key][i-1] {
				got = append(got, v)
			}
		}
		require.Equal(w.t, values, got, key)
	}
	return h
}

// writing writes ascending numbers to keys until stop is called, which returns what it wrote.
func (w *clusterFixture) writing(keys []string) (stop func() map[string][]string, count *atomic.Int64) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	written := map[string][]string{}
	count = &atomic.Int64{}
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, key := range keys {
				if err := w.set(context.Background(), key, strconv.Itoa(i), ""); err != nil {
					ended <- err
					return
				}
				written[key] = append(written[key], strconv.Itoa(i))
				count.Add(1)
			}
		}
		ended <- nil
	}()
	return func() map[string][]string {
		w.t.Helper()
		cancel()
		require.NoError(w.t, <-ended)
		return written
	}, count
}

// grows waits until count has grown by n.
func grows(t *testing.T, count *atomic.Int64, n int64) {
	t.Helper()
	from := count.Load()
	require.Eventually(t, func() bool { return count.Load() >= from+n }, await.Patience, time.Millisecond)
}

// emptied waits until the primaries hold no entries any more.
func (w *clusterFixture) emptied() {
	w.t.Helper()
	var left string
	defer func() {
		if w.t.Failed() {
			w.t.Log(left)
		}
	}()
	require.Eventually(w.t, func() bool {
		m := w.primaries.Map()
		for _, p := range m.Primaries() {
			state, err := w.primaries.At(p.Address).Do(w.t.Context(), "FCALL", "sonic_primary", 0).StringSlice()
			if err != nil || state[2] != "0" {
				left = fmt.Sprint(p, state, err)
				return false
			}
			outs, err := w.primaries.At(p.Address).Keys(w.t.Context(), "*out").Result()
			if err != nil {
				return false
			}
			for _, out := range outs {
				if strings.HasPrefix(out, "{sonic:") && w.primaries.At(p.Address).XLen(w.t.Context(), out).Val() > 0 {
					left = fmt.Sprint(p, out)
					return false
				}
			}
		}
		return true
	}, await.Patience, 20*time.Millisecond)
}

// marked waits until a primary has a marker of a message.
func (w *clusterFixture) marker(address string) primaries.Marker {
	w.t.Helper()
	m, err := primaries.ReadMarker(w.t.Context(), w.primaries.At(address), primaries.SlotsOf(w.primaries.Map(), address), "a")
	require.NoError(w.t, err)
	return m
}

func slotOf(key string) script.Keys { return script.SlotKeys(cluster.Slot([]byte(key))) }
