package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clustered is a Redis Cluster. Each slot is a shard.
type clustered struct {
	zone      *Zone
	primaries *primaries.Primaries
}

func (z *Zone) isCluster() bool {
	_, is := z.store.(*clustered)
	return is
}

func (c *clustered) shardOf(key string) int { return cluster.Slot([]byte(key)) }

// callTimeout bounds calls, with the time that they wait for a slot that is moving, or that has no
// primary.
const callTimeout = 5 * time.Minute

func (c *clustered) do(ctx context.Context, calls []primaries.Call) ([]primaries.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.primaries.Do(ctx, calls)
}

// eachPrimary calls f for each primary with its slots.
func (c *clustered) eachPrimary(f func(db *redis.Client, slots []int) error) error {
	m := c.primaries.Map()
	if m == nil {
		return errors.New("the slots of the Redis Cluster are not known: none of its nodes answers")
	}
	for _, p := range m.Primaries() {
		if slots := primaries.SlotsOf(m, p.Address); len(slots) > 0 {
			if err := f(c.primaries.At(p.Address), slots); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *clustered) each(f func(db *redis.Client) error) error {
	return c.eachPrimary(func(db *redis.Client, _ []int) error { return f(db) })
}

// walk goes from slot to slot: keys that are at other primaries meanwhile are not missed.
func (c *clustered) walk(ctx context.Context, count int, visit func(db int, names []string) error) error {
	return c.eachSlots(ctx, "sonic_slot", nil, func(_ []int, replies []any) error {
		var names []string
		for _, reply := range replies {
			found := redislib.ValuesOf(reply, nil)
			names = append(names, texts(found)...)
			if err := found.Err(); err != nil {
				return err
			}
		}
		for part := range slices.Chunk(names, count) {
			if err := visit(0, part); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachSlots calls a function for all slots, and visit with the replies of some of them at a time.
func (c *clustered) eachSlots(ctx context.Context, function string, args []any, visit func(slots []int, replies []any) error) error {
	for some := range slices.Chunk(c.shards(), slotsAtOnce) {
		var calls []primaries.Call
		for _, slot := range some {
			calls = append(calls, primaries.Call{Slot: slot, Function: function, Args: args})
		}
		replies, err := c.zone.calls(ctx, calls)
		if err != nil {
			return err
		}
		if err := visit(some, replies); err != nil {
			return err
		}
	}
	return nil
}

func (c *clustered) shards() []int {
	slots := make([]int, cluster.Slots)
	for slot := range slots {
		slots[slot] = slot
	}
	return slots
}

// reached takes the markers: the cursors of slots do not say whether there is something for other
// slots. Of its own zone it has everything.
func (c *clustered) reached(ctx context.Context) (Reached, error) {
	at, _, ready, err := c.watermarks(ctx, "")
	if err != nil || !ready {
		return nil, err // a primary that is not ready may lack effects of any zone
	}
	at[c.zone.name] = wire.ID{Ms: math.MaxUint64}
	return at, nil
}

// watermarks returns the watermarks of the markers that appliers and the shipper write, of each zone,
// and what asker once reported: "<asker> <other>", id, .. Each is true of all primaries that are
// ready, and in the lowest slot of each.
func (c *clustered) watermarks(ctx context.Context, asker string) (at Reached, reported []string, ready bool, err error) {
	all := Reached{}
	ready = true
	err = c.eachPrimary(func(db *redis.Client, slots []int) error {
		state, err := redislib.LookPrimary(ctx, db)
		if err != nil {
			return err
		}
		ready = ready && state.Opened && state.Ready
		found, err := primaries.ReadMarkers(ctx, db, slots[0])
		for name, marker := range found {
			all[name] = wire.Max(all[name], wire.ID{Ms: marker.Watermark})
		}
		return err
	})
	at = Reached{}
	for name, id := range all {
		switch zone, _, isReport := primaries.CutReachedMarker(name); {
		case !isReport:
			at[name] = id
		case zone == asker:
			reported = append(reported, name, id.String())
		}
	}
	return at, reported, ready, c.zone.wrapError(err)
}

func (c *clustered) source(ctx context.Context, asker string) (src source, err error) {
	var ready bool
	src.reached, src.reportedCursors, ready, err = c.watermarks(ctx, asker)
	if err == nil && !ready {
		err = c.zone.wrapError(errors.New("a primary was restarted or has taken over, and is not ready yet: run the command again"))
	}
	if err != nil {
		return src, err
	}
	src.most = maps.Clone(src.reached)
	err = c.eachSlots(ctx, "sonic_source", []any{asker}, func(slots []int, replies []any) error {
		for i, reply := range replies {
			at, _, err := src.add(reply, nil)
			if err != nil {
				return err
			}
			for zone, id := range at {
				src.addSlot(zone, slots[i], id)
			}
		}
		return nil
	})
	return src, err
}

// holds takes the progress of the slots of keys.
func (c *clustered) holds(ctx context.Context, keys []Key, _ []string) (Reached, error) {
	asked := map[int]struct{}{}
	var calls []primaries.Call
	for _, key := range keys {
		slot := c.shardOf(key.Name)
		if _, had := asked[slot]; !had {
			asked[slot] = struct{}{}
			calls = append(calls, primaries.Call{Slot: slot, Function: "sonic_digests", Args: []any{0}})
		}
	}
	replies, err := c.zone.calls(ctx, calls)
	if err != nil {
		return nil, err
	}
	at := Reached{}
	for _, reply := range replies {
		of, _, err := readDigests(reply, nil)
		if err != nil {
			return nil, err
		}
		if _, own := of[c.zone.name]; !own {
			return nil, fmt.Errorf("a primary of zone %s was restarted, or has taken over: run the command again", c.zone.name)
		}
		for zone, id := range of {
			at[zone] = wire.Max(at[zone], after(id))
		}
	}
	return at, nil
}
