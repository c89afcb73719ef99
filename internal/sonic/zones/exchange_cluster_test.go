package zones_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

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
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// clusterOf is the Redis Cluster of a zone.
type clusterOf struct {
	*stack.RedisCluster
	primaries *primaries.Primaries
	client    *redis.ClusterClient
	watermark uint64       // of the last message
	known     *cluster.Map // of the last message
}

func newClusterOf(t testing.TB) *clusterOf {
	t.Helper()
	c := &clusterOf{RedisCluster: stack.PrivateRedisCluster(t, 3, 0)}
	topology := cluster.New(cluster.Config{Addresses: c.Addresses()}, zaptest.NewLogger(t))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- topology.Run(ctx) }()
	c.primaries = primaries.New(topology, func(address string) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, Protocol: 2})
	})
	c.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addresses(), Protocol: 2})
	t.Cleanup(func() {
		assert.NoError(t, c.client.Close())
		assert.NoError(t, c.primaries.Close())
		stop()
		assert.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool { return topology.Map() != nil }, await.Patience, 5*time.Millisecond)
	return c
}

// each calls f for each primary with its slots.
func (c *clusterOf) each(f func(db *redis.Client, slots []int) error) error {
	m := c.primaries.Map()
	for _, p := range m.Primaries() {
		if err := f(c.primaries.At(p.Address), primaries.SlotsOf(m, p.Address)); err != nil {
			return err
		}
	}
	return nil
}

func (c *clusterOf) library(db *redis.Client, f func(p *redislib.Primary) error) error {
	conn := db.Conn()
	defer func() { _ = conn.Close() }()
	return f(redislib.NewPrimary(conn, redislib.Config{}))
}

// openPrimaries opens all primaries.
func (z *zone) openPrimaries() {
	z.t.Helper()
	ctx := z.t.Context()
	require.NoError(z.t, z.cluster.each(func(db *redis.Client, slots []int) error {
		if err := script.Load(ctx, db); err != nil {
			return err
		}
		args := []any{"FCALL", "sonic_open_primary", 0, z.Name(), "r", wire.ID{Ms: z.cluster.watermark}.String(), len(z.others)}
		for _, other := range z.others {
			args = append(args, other)
		}
		if err := db.Do(ctx, append(args, "lww", "n:", "none", "c:", "counter")...).Err(); err != nil {
			return err
		}
		return z.cluster.library(db, func(p *redislib.Primary) error {
			_, err := p.Hold(ctx, slots)
			return err
		})
	}))
}

// shipSlots stores what the streams of all slots hold as one message. There is one also if they hold
// nothing: it has the time.
func (z *zone) shipSlots(ctx context.Context) error {
	m := stored{slots: true}
	var groups []wire.Group
	clock := uint64(math.MaxUint64)
	moved := z.cluster.known != z.cluster.primaries.Map()
	z.cluster.known = z.cluster.primaries.Map()
	if err := z.cluster.each(func(db *redis.Client, slots []int) error {
		return z.cluster.library(db, func(p *redislib.Primary) error {
			if moved { // perhaps to here
				if _, err := p.Hold(ctx, slots); err != nil {
					return err
				}
			}
			taken, state, left, err := p.Take(ctx, true) // it is the first call of this Primary
			if left {
				state.Clock = 0
			}
			clock = min(clock, state.Clock)
			for _, t := range taken {
				g := wire.Group{Slot: t.Slot, Prev: t.Prev}
				var joiner wire.Joiner
				for _, m := range t.Entries {
					e, ok, err := joiner.Add(m.ID, m.Values)
					if err != nil {
						return err
					}
					if ok {
						g.Entries = append(g.Entries, e)
						g.Last = e.ID
					}
				}
				groups = append(groups, g)
			}
			return err
		})
	}); err != nil {
		return err
	}
	z.cluster.watermark = max(z.cluster.watermark, clock)
	m.watermark = z.cluster.watermark
	m.payload, _ = wire.GroupsPayload(groups)
	z.topic = append(z.topic, m)
	if len(groups) == 0 {
		return nil
	}
	shipped := map[int]wire.ID{}
	for i := range groups {
		shipped[groups[i].Slot] = groups[i].Last
	}
	return z.cluster.each(func(db *redis.Client, _ []int) error {
		own := map[int]wire.ID{}
		for slot, id := range shipped {
			if db.Options().Addr == z.cluster.primaries.Map().Owner(slot) {
				own[slot] = id
			}
		}
		_, err := redislib.ShippedSlots(ctx, db, own)
		return err
	})
}

// applyGroups applies groups of slots.
func (z *zone) applyGroups(ctx context.Context, origin string, groups []wire.PackedGroup) error {
	var calls []primaries.Call
	for _, g := range groups {
		name := origin
		if z.cluster == nil {
			name += "/" + strconv.Itoa(g.Slot)
		}
		calls = append(calls, primaries.Call{Slot: g.Slot, Function: redislib.ApplyFunction, Args: redislib.ApplyArgs(name, 1, false, g, "")})
	}
	replies := make([]primaries.Reply, len(calls))
	var err error
	if z.cluster != nil {
		if replies, err = z.cluster.primaries.Do(ctx, calls); err != nil {
			return err
		}
	} else {
		cmds, err := z.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, c := range calls {
				p.Do(ctx, append([]any{"FCALL", c.Function, 1, z.out}, c.Args...)...)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i, cmd := range cmds {
			replies[i].Value = cmd.(*redis.Cmd).Val()
		}
	}
	for i, r := range replies {
		result, err := redislib.ApplyResult(r.Value, r.Err)
		if err == nil && result.Status == redislib.Gap {
			err = fmt.Errorf("slot %d of %s in %s: a gap", calls[i].Slot, origin, z.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applySlots applies a message of a zone with a Redis Cluster, or to one.
func (z *zone) applySlots(ctx context.Context, origin string, m stored) error {
	var groups []wire.PackedGroup
	var err error
	if m.slots {
		groups, err = wire.Groups(m.payload)
	} else {
		var split wire.Split
		split, err = wire.SplitBySlot(m.payload)
		for _, s := range split.Slots {
			groups = append(groups, wire.PackedGroup{Slot: s.Slot, Last: s.Last, Entries: s.Payload})
		}
	}
	if err != nil {
		return err
	}
	if err := z.applyGroups(ctx, origin, groups); err != nil {
		return err
	}
	if z.cluster == nil {
		return z.fcall(ctx, "sonic_reached", origin, z.epoch, wire.ID{Ms: m.watermark}.String(), "").Err()
	}
	if !m.slots {
		last, err := wire.ParseID(m.last)
		if err != nil {
			return err
		}
		m.watermark = last.Ms
	}
	id, err := messaging.ParseMessageID([]byte{8, 1, 16, 1}) // any
	if err != nil {
		return err
	}
	return z.cluster.each(func(db *redis.Client, slots []int) error {
		return primaries.WriteMarker(ctx, db, slots, origin, primaries.Marker{Message: id, Watermark: m.watermark})
	})
}

// pass takes a message of a zone as applied, and applies nothing of it.
func (z *zone) pass(ctx context.Context, origin string, m stored) error {
	if m.slots {
		packed, err := wire.Groups(m.payload)
		if err != nil {
			return err
		}
		var groups []wire.Group
		for _, g := range packed {
			groups = append(groups, wire.Group{Slot: g.Slot, Prev: g.Prev, Last: g.Last})
		}
		m.payload, _ = wire.GroupsPayload(groups)
	} else {
		m.payload, _ = wire.Payload(nil)
	}
	return z.apply(ctx, origin, m)
}
