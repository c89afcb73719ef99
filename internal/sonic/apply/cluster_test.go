package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// target is zone c, which has a Redis Cluster and writes nothing.
type target struct {
	t         *testing.T
	cluster   *stack.RedisCluster
	primaries *primaries.Primaries
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// newTarget starts a zone with others. As the owner of its topic does, it opens its primaries, and
// those that were restarted or have taken over without r.
func newTarget(t *testing.T, count, replicas int, others ...string) *target {
	t.Helper()
	c := stack.PrivateRedisCluster(t, count, replicas, "cluster-require-full-coverage no")
	topology := cluster.New(cluster.Config{Addresses: c.Addresses()}, zaptest.NewLogger(t))
	ctx, stop := context.WithCancel(context.Background())
	z := &target{t: t, cluster: c, stop: stop}
	z.primaries = primaries.New(topology, func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second})
	})
	z.running.Go(func() { _ = topology.Run(ctx) })
	for _, n := range c.Nodes()[:count] {
		require.NoError(t, openPrimary(ctx, n.Client(t), "r", others))
	}
	z.running.Go(func() {
		for ticker := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; {
			if m := topology.Map(); m != nil {
				for _, p := range m.Primaries() {
					z.openAgain(ctx, p.Address, others)
				}
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(func() {
		stop()
		z.running.Wait()
		_ = z.primaries.Close()
	})
	return z
}

func openPrimary(ctx context.Context, db *redis.Client, flags string, others []string) error {
	if err := script.Replace(ctx, db); err != nil {
		return err
	}
	args := []any{"FCALL", "sonic_open_primary", 0, "c", flags, "0-0", len(others)}
	for _, other := range others {
		args = append(args, other)
	}
	return db.Do(ctx, append(args, "none")...).Err()
}

// openAgain opens a primary that is not opened. It has no effects of its own zone to recover.
func (z *target) openAgain(ctx context.Context, address string, others []string) {
	db := z.primaries.At(address)
	state, err := db.Do(ctx, "FCALL", "sonic_primary", 0).StringSlice()
	if err != nil && !redislib.NoFunction(err) || err == nil && state[0] == "1" {
		return // it cannot be reached, or is opened
	}
	if openPrimary(ctx, db, "", others) == nil {
		_ = db.Do(ctx, "FCALL", "sonic_recovered", 0, "c").Err()
	}
}

// of returns a client of the primary that has a key.
func (z *target) of(key string) *redis.Client {
	return z.primaries.At(z.primaries.Map().Owner(cluster.Slot([]byte(key))))
}

// applier returns one of the zone.
func (z *target) applier(client *messaging.Client, cfg Config) *ClusterApplier {
	return NewCluster(cfg, z.primaries, client, zaptest.NewLogger(z.t), testMetrics())
}

// load has an origin write numbers to lists in many slots.
type load struct {
	origin  *origin
	written int
}

const lists = 40

func (l *load) list(n int) string { return fmt.Sprint(l.origin.name, n) }

func (l *load) write(n int) {
	for range n {
		for list := range lists {
			l.origin.write("rpush", l.list(list), l.written)
		}
		l.written++
		l.origin.ship()
	}
}

// applied waits until the zone has all, and checks that it has each number once and in order.
func (l *load) applied(z *target) {
	z.t.Helper()
	ctx := z.t.Context()
	eventually(z.t, func() bool {
		for list := range lists {
			if n, err := z.of(l.list(list)).LLen(ctx, l.list(list)).Result(); err != nil || n < int64(l.written) {
				return false
			}
		}
		return true
	}, "%d numbers of zone %s are in each list", l.written, l.origin.name)
	for list := range lists {
		require.Equal(z.t, numbers(l.written), z.of(l.list(list)).LRange(ctx, l.list(list), 0, -1).Val(), l.list(list))
	}
}

// marked waits until the marker of the last message of the origin is written.
func (l *load) marked(a *ClusterApplier) {
	l.origin.t.Helper()
	eventually(l.origin.t, func() bool {
		m, err := a.latestMarker(l.origin.t.Context())
		return err == nil && m.Message == l.origin.writer.LastID()
	}, "the marker of the last message")
}

// A zone with a Redis Cluster applies what zones with and without one write once and in order, while
// slots move, a process ends, and a primary is killed and a replica takes over.
func TestMessagesToARedisCluster(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	z := newTarget(t, 3, 1, "a", "b")
	loads := []*load{
		{origin: newOrigin(t, client, namespace, "a", false, "b", "c")},
		{origin: newOrigin(t, client, namespace, "b", true, "a", "c")},
	}
	var appliers []*ClusterApplier
	var stops []func()
	for _, l := range loads {
		a := z.applier(client, appliersConfig(namespace, "c", l.origin.name))
		appliers, stops = append(appliers, a), append(stops, runApplier(t, a.Run))
	}
	write := func(n int) {
		for _, l := range loads {
			l.write(n)
		}
	}
	applied := func() {
		t.Helper()
		for _, l := range loads {
			l.applied(z)
		}
	}
	write(5)
	applied()

	nodes := z.cluster.Nodes()
	for i, key := range []string{"a0", "b0", "a1", "b1", "a2", "b2"} { // slots move under load
		slot := cluster.Slot([]byte(key))
		to := nodes[i%3].Addr()
		if z.cluster.Owner(t, slot) == to {
			to = nodes[(i+1)%3].Addr()
		}
		z.cluster.StartMove(t, slot, to)
		write(1)
		z.cluster.MoveKeys(t, slot, 1)
		write(1)
		z.cluster.EndMove(t, slot)
	}
	applied()
	for i, a := range appliers {
		s := a.Status()
		assert.False(t, s.Gap)
		assert.Equal(t, loads[i].origin.packer.Tail.Count, s.Count)
		_, effects, known := s.Behind(time.Now())
		assert.True(t, known)
		assert.Zero(t, effects)
	}

	// The next process goes on where the last one was, also within a message in parts.
	var rest [][]wire.Message
	for i, l := range loads {
		l.origin.write("rpush", l.origin.name+"large", incompressible())
		messages := l.origin.messages()
		require.Greater(t, len(messages), 2)
		l.origin.store(messages[:2])
		rest = append(rest, messages[2:])
		eventually(t, func() bool { return drained(t, pulsar, appliers[i].cfg) }, "all parts so far are acknowledged")
	}
	for i, stop := range stops {
		stop()
		loads[i].origin.store(rest[i])
		appliers[i] = z.applier(client, appliersConfig(namespace, "c", loads[i].origin.name))
		stops[i] = runApplier(t, appliers[i].Run)
	}
	loads[1].origin.told = map[string]uint64{"a": 77}
	write(3)
	applied()
	for _, l := range loads {
		same := incompressible() == z.of(l.origin.name+"large").LIndex(t.Context(), l.origin.name+"large", 0).Val()
		assert.True(t, same) // the difference would be too long to read
	}
	eventually(t, func() bool { // what a zone has told is known to all processes
		address := nodes[0].Addr()
		m, err := primaries.ReadMarker(t.Context(), z.primaries.At(address), primaries.SlotsOf(z.primaries.Map(), address), primaries.ReachedMarker("b", "a"))
		return err == nil && m.Watermark == 77
	}, "what zone b has told")
	other := z.applier(client, appliers[1].cfg)
	other.updateOtherReached(t.Context())
	assert.Equal(t, map[string]uint64{"a": 77}, other.OtherReached())
	assert.Equal(t, other.OtherReached(), appliers[1].OtherReached())
	assert.Positive(t, appliers[1].Reached())

	// A replica takes over. It has what its primary had sent it.
	require.NoError(t, nodes[0].Kill())
	write(3)
	applied()
}

// A primary that was restarted has lost the end of its data. It takes nothing before it has all
// again, also when nobody writes any more.
func TestAPrimaryLosesEffects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	z := newTarget(t, 2, 0, "a", "b")
	loads := []*load{
		{origin: newOrigin(t, client, namespace, "a", false, "b", "c")},
		{origin: newOrigin(t, client, namespace, "b", true, "a", "c")},
	}
	var appliers []*ClusterApplier
	for _, l := range loads {
		a := z.applier(client, appliersConfig(namespace, "c", l.origin.name))
		runApplier(t, a.Run)
		appliers = append(appliers, a)
	}
	for round := range 3 {
		for i, l := range loads {
			l.write(5)
			if i < round { // in the first round no marker is saved: everything is read again
				l.marked(appliers[i])
			}
		}
		for _, l := range loads {
			l.applied(z)
		}
		lost := z.cluster.Nodes()[round%2]
		require.NoError(t, lost.Client(t).Save(ctx).Err())
		for _, l := range loads {
			l.write(5)
			l.applied(z)
		}
		require.NoError(t, lost.Kill())
		if round == 2 { // what is written meanwhile waits
			for _, l := range loads {
				l.write(5)
			}
		}
		require.NoError(t, lost.Start(ctx))
		for _, l := range loads {
			l.applied(z)
		}
		eventually(t, func() bool {
			state, err := redislib.LookPrimary(ctx, lost.Client(t))
			return err == nil && len(state.Recovering) == 0
		}, "the primary is ready")
	}
}

// lack marks the slots of a primary that has to recover, as the owner of the zone's topic does.
func (z *target) lack(node *stack.RedisServer, others ...string) {
	z.t.Helper()
	ctx := z.t.Context()
	conn := node.Client(z.t).Conn()
	defer func() { require.NoError(z.t, conn.Close()) }()
	slots := primaries.SlotsOf(z.primaries.Map(), node.Addr())
	markers := map[string]string{}
	for _, other := range others {
		m, err := primaries.ReadRecovery(ctx, conn, slots, other)
		require.NoError(z.t, err)
		markers[other] = m.Text()
	}
	missing, err := redislib.NewPrimary(conn, redislib.Config{}).MarkRecovery(ctx, slots, markers)
	require.NoError(z.t, err)
	require.Empty(z.t, missing)
}

// A slot of a primary that has lost effects moves to another primary, which is ready, before anybody
// has applied them again. They are applied there.
func TestASlotMovesFromAPrimaryThatLostEffects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	z := newTarget(t, 2, 0, "a", "b")
	var loads []*load
	var stops []func()
	for name, slots := range map[string]bool{"a": false, "b": true} {
		l := &load{origin: newOrigin(t, client, namespace, name, slots, "c")}
		a := z.applier(client, appliersConfig(namespace, "c", name))
		loads, stops = append(loads, l), append(stops, runApplier(t, a.Run))
		l.write(5)
		l.applied(z)
		l.marked(a)
	}
	from, to := z.cluster.Nodes()[0], z.cluster.Nodes()[1]
	require.NoError(t, from.Client(t).Save(ctx).Err())
	for _, l := range loads {
		l.write(5)
		l.applied(z)
	}
	for _, stop := range stops {
		stop()
	}
	require.NoError(t, from.Kill())
	require.NoError(t, from.Start(ctx))
	eventually(t, func() bool {
		state, err := redislib.LookPrimary(ctx, from.Client(t))
		return err == nil && len(state.Recovering) == 2 && strings.Contains(from.Client(t).ClusterInfo(ctx).Val(), "cluster_state:ok") &&
			strings.Contains(to.Client(t).ClusterInfo(ctx).Val(), "cluster_state:ok")
	}, "the primary has to recover")
	z.lack(from, "a", "b")
	var moved []int
	for list := range lists {
		for _, l := range loads {
			if slot := cluster.Slot([]byte(l.list(list))); len(moved) < 4 && z.cluster.Owner(t, slot) == from.Addr() {
				z.cluster.MoveSlot(t, slot, to.Addr())
				moved = append(moved, slot)
			}
		}
	}
	eventually(t, func() bool {
		for _, slot := range moved {
			if z.primaries.Map().Owner(slot) != to.Addr() {
				z.primaries.Refresh()
				return false
			}
		}
		return true
	}, "the slots have moved")
	_, err := redislib.Hold(ctx, to.Client(t), moved)
	require.NoError(t, err)
	state, err := redislib.LookPrimary(ctx, to.Client(t))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a", "b", "c"}, state.Recovering)
	z.lack(to, "a", "b")
	require.NoError(t, to.Client(t).Do(ctx, "FCALL", "sonic_recovered", 0, "c").Err())

	for _, l := range loads {
		runApplier(t, z.applier(client, appliersConfig(namespace, "c", l.origin.name)).Run)
	}
	for _, l := range loads {
		l.applied(z)
		l.write(1)
		l.applied(z)
	}
}

// A flush of a zone with one Redis deletes what is before it in all slots. Effects on databases that a
// Redis Cluster does not have are counted, and hold up nothing.
func TestFlushesAndDatabasesToARedisCluster(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	z := newTarget(t, 2, 0, "a", "b")
	l := &load{origin: newOrigin(t, client, namespace, "a", false, "b", "c")}
	cfg, metrics := appliersConfig(namespace, "c", "a"), testMetrics()
	stop := runApplier(t, NewCluster(cfg, z.primaries, client, zaptest.NewLogger(t), metrics).Run)
	holds := func() { // the lists may have been longer before
		t.Helper()
		eventually(t, func() bool {
			for list := range lists {
				if !slices.Equal(numbers(l.written), z.of(l.list(list)).LRange(t.Context(), l.list(list), 0, -1).Val()) {
					return false
				}
			}
			return true
		}, "%d numbers", l.written)
	}
	l.write(5)
	holds()
	for range 3 {
		l.write(2)
		l.origin.write("flushall")
		for list := range lists { // in one message with the flush
			l.origin.write("rpush", l.list(list), 0)
		}
		l.written = 1
		l.origin.ship()
		l.write(2)
		holds()
	}
	stop()
	runApplier(t, NewCluster(cfg, z.primaries, client, zaptest.NewLogger(t), metrics).Run)
	l.origin.writeIn(3, "set", "elsewhere", "1")
	l.origin.writeIn(3, "flushdb")
	l.write(1)
	holds()
	assert.Zero(t, z.of("elsewhere").Exists(t.Context(), "elsewhere").Val())
	assert.InDelta(t, 1, testutil.ToFloat64(metrics.effects.WithLabelValues("a", "diverged")), 0)

	l.origin.write("flushall")
	l.origin.ship()
	eventually(t, func() bool {
		for list := range lists {
			if z.of(l.list(list)).Exists(t.Context(), l.list(list)).Val() != 0 {
				return false
			}
		}
		return true
	}, "nothing is left")
}

// Messages that the topic does not have any more are a gap, and nothing behind them is applied.
func TestAGapBeforeACluster(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	z := newTarget(t, 2, 0, "a", "b")
	for name, slots := range map[string]bool{"a": false, "b": true} {
		o := newOrigin(t, client, namespace, name, slots, "c")
		a := z.applier(client, appliersConfig(namespace, "c", name))
		runApplier(t, a.Run)
		o.write("set", name, "1")
		o.ship()
		eventually(t, func() bool { return z.of(name).Get(t.Context(), name).Val() == "1" }, "the message before")
		o.write("set", name, "2")
		o.messages() // is not stored
		o.write("set", name, "3")
		o.ship()
		eventually(t, func() bool { return a.Status().Gap }, "a gap")
		assert.Equal(t, "1", z.of(name).Get(t.Context(), name).Val())
	}
}
