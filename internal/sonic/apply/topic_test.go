package apply

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// dial returns a client of the tests' Pulsar.
func dial(t *testing.T, pulsar *stack.PulsarServer) *messaging.Client {
	t.Helper()
	client, err := messaging.Dial(t.Context(), messaging.Config{URL: pulsar.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

// origin is a zone that writes, and its topic.
type origin struct {
	t       *testing.T
	name    string
	slots   bool // its messages are those of a zone with a Redis Cluster
	redis   *redis.Client
	library *redislib.Library
	writer  *messaging.EntryWriter
	packer  wire.Packer
	read    wire.ID
	chains  map[int]wire.ID   // by slot
	told    map[string]uint64 // of a zone with a Redis Cluster
}

// newOrigin starts a zone. Its effects are under the policy none, so that they have to be applied
// once and in order.
func newOrigin(t *testing.T, client *messaging.Client, namespace, name string, slots bool, others ...string) *origin {
	t.Helper()
	ctx := t.Context()
	o := &origin{t: t, name: name, slots: slots, redis: stack.PrivateRedis(t).Client(t), chains: map[int]wire.ID{}}
	o.library = redislib.New(o.redis, redislib.Config{Zone: name, Others: others, Default: "none"})
	state, err := o.library.ReadState(ctx)
	require.NoError(t, err)
	_, err = o.library.Open(ctx, state, 1, wire.ID{})
	require.NoError(t, err)
	o.packer = wire.Packer{Origin: name, Tail: wire.Tail{Epoch: 1, Position: -1}}
	o.writer, err = client.EntryWriter(ctx, topicOf(namespace, name), messaging.EntryWriterConfig{
		Name: "sonic-" + name, Position: func(d *messaging.Delivery) (int64, error) {
			h, err := topic.Header(d, name)
			if err != nil {
				return 0, err
			}
			return h.Position, nil
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = o.writer.Close(context.Background()) })
	return o
}

func topicOf(namespace, zone string) string {
	return "persistent://" + namespace + "/sonic-" + zone + "-0"
}

// write runs a write in the zone.
func (o *origin) write(command string, args ...any) {
	o.t.Helper()
	o.writeIn(0, command, args...)
}

// writeIn is write in a database.
func (o *origin) writeIn(db int, command string, args ...any) {
	o.t.Helper()
	call := append([]any{"FCALL", "sonic_" + command, 1, o.library.Outbox(), db}, args...)
	require.NoError(o.t, o.redis.Do(o.t.Context(), call...).Err())
}

// entries returns what was written since the last call.
func (o *origin) entries() (entries []wire.Entry) {
	o.t.Helper()
	list, err := o.redis.XRange(o.t.Context(), o.library.Outbox(), "("+o.read.String(), "+").Result()
	require.NoError(o.t, err)
	joiner := new(wire.Joiner)
	for _, m := range list {
		e, ok, err := joiner.Add(m.ID, m.Values)
		require.NoError(o.t, err)
		if ok {
			o.read = e.ID
			entries = append(entries, e)
		}
	}
	return entries
}

// ship stores what was written as one message, in parts if it is large. It stores a message without
// effects if nothing was written, and the zone has a cluster.
func (o *origin) ship() {
	o.t.Helper()
	o.store(o.messages())
}

func (o *origin) store(messages []wire.Message) {
	o.t.Helper()
	for i := range messages {
		m := &messages[i]
		record := &messaging.Record{Payload: m.Payload, Properties: m.Header.Properties(), SequenceID: &m.Header.Position}
		require.NoError(o.t, o.writer.Store(o.t.Context(), record))
	}
}

func (o *origin) messages() (messages []wire.Message) {
	o.t.Helper()
	entries := o.entries()
	if !o.slots {
		if len(entries) == 0 {
			return nil
		}
		messages, ends, err := o.packer.Pack(entries)
		require.NoError(o.t, err)
		o.packer.Tail = ends
		return messages
	}
	var groups []wire.Group
	at := map[int]int{}
	for _, e := range entries {
		effects, err := wire.Effects(e.Effects)
		require.NoError(o.t, err)
		slot := cluster.Slot([]byte(effects[0].Values[3]))
		if _, found := at[slot]; !found {
			at[slot] = len(groups)
			groups = append(groups, wire.Group{Slot: slot, Prev: o.chains[slot]})
		}
		g := &groups[at[slot]]
		g.Entries, g.Last = append(g.Entries, e), e.ID
		o.chains[slot] = e.ID
	}
	payload, n := wire.GroupsPayload(groups)
	t := &o.packer.Tail
	t.Last, t.Count = o.read, t.Count+n
	h := wire.Header{
		Origin: o.name, Epoch: 1, Last: t.Last, Count: t.Count, Slots: true, Watermark: uint64(time.Now().UnixMilli()), Reached: o.told,
		Parts: max(1, (len(payload)+wire.PartBytes-1)/wire.PartBytes),
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		t.Position++
		h.Position = t.Position
		end := min(wire.PartBytes, len(payload))
		messages = append(messages, wire.Message{Header: h, Payload: payload[:end]})
		payload = payload[end:]
	}
	return messages
}

// runApplier runs an applier until the returned function is called, or the test ends.
func runApplier(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

func appliersConfig(namespace, zone, origin string) Config {
	return Config{Zone: zone, Origin: origin, Topic: topicOf(namespace, origin), MaxClockSkew: time.Hour}
}

// eventually waits for a condition.
func eventually(t *testing.T, condition func() bool, what string, args ...any) {
	t.Helper()
	require.Eventually(t, condition, await.Patience, 5*time.Millisecond, append([]any{what}, args...)...)
}

// numbers are the texts of 0 to n-1.
func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func testMetrics() *Metrics { return NewMetrics(prometheus.NewRegistry()) }

// newApplier returns an applier of a zone with one Redis.
func newApplier(t *testing.T, client *messaging.Client, cfg Config, l *redislib.Library) *Applier {
	t.Helper()
	return New(cfg, l, client, zaptest.NewLogger(t), testMetrics())
}
