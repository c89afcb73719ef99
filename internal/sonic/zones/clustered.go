package zones

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clustered is a Redis Cluster. Each slot is a shard.
type clustered struct{ primaries *primaries.Primaries }

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

// slotsAtOnce is how many slots walk asks for their keys at once.
const slotsAtOnce = 64

// walk goes from slot to slot: keys that are at other primaries meanwhile are not missed.
func (c *clustered) walk(ctx context.Context, z *Zone, count int, visit func(db int, names []string) error) error {
	var calls []primaries.Call
	for slot := range cluster.Slots {
		calls = append(calls, primaries.Call{Slot: slot, Function: "sonic_slot"})
	}
	for some := range slices.Chunk(calls, slotsAtOnce) {
		replies, err := z.calls(ctx, some)
		if err != nil {
			return err
		}
		var names []string
		for _, reply := range replies {
			found, err := texts(reply)
			if err != nil {
				return err
			}
			names = append(names, found...)
		}
		for part := range slices.Chunk(names, count) {
			if err := visit(0, part); err != nil {
				return err
			}
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

// reached takes the markers: the cursors of slots do not tell whether there is something for other
// slots. Of its own zone it has everything.
func (c *clustered) reached(ctx context.Context, z *Zone) (Reached, error) {
	watermarks, ready, err := c.watermarks(ctx)
	if err != nil || !ready {
		return nil, z.wrapError(err) // a primary that is not ready may lack effects of any zone
	}
	at := Reached{}
	for name, id := range watermarks {
		if _, _, reached := primaries.CutReachedMarker(name); !reached {
			at[name] = id
		}
	}
	at[z.name] = wire.ID{Ms: math.MaxUint64}
	return at, nil
}

// watermarks returns the watermarks of the markers that appliers and the shipper write. Each is true of
// all primaries that are ready, and in the lowest slot of each.
func (c *clustered) watermarks(ctx context.Context) (watermarks map[string]wire.ID, ready bool, err error) {
	watermarks, ready = map[string]wire.ID{}, true
	err = c.eachPrimary(func(db *redis.Client, slots []int) error {
		state, err := db.Do(ctx, "FCALL", "sonic_primary", 0).StringSlice()
		if err != nil {
			return err
		}
		ready = ready && len(state) > 1 && state[0] == "1" && state[1] == "1"
		found, err := primaries.ReadMarkers(ctx, db, slots[0])
		for name, marker := range found {
			watermarks[name] = wire.Max(watermarks[name], wire.ID{Ms: marker.Watermark})
		}
		return err
	})
	return watermarks, ready, err
}

func (c *clustered) progress(ctx context.Context, z *Zone, asker string) (Reached, []string, error) {
	watermarks, ready, err := c.watermarks(ctx)
	if err == nil && !ready {
		err = errors.New("a primary was restarted or has taken over, and is not ready yet: run the command again")
	}
	if err != nil {
		return nil, nil, z.wrapError(err)
	}
	at, told := Reached{}, []string(nil)
	for name, id := range watermarks {
		switch zone, _, reached := primaries.CutReachedMarker(name); {
		case !reached:
			at[name] = id
		case zone == asker:
			told = append(told, name, id.String())
		}
	}
	return at, told, nil
}

func (c *clustered) addSlots(context.Context, *source) error { return nil }

// holds takes the progress of the slots of keys.
func (c *clustered) holds(ctx context.Context, z *Zone, keys []Key, _ []string) (Reached, error) {
	asked := map[int]struct{}{}
	var calls []primaries.Call
	for _, key := range keys {
		slot := c.shardOf(key.Name)
		if _, had := asked[slot]; !had {
			asked[slot] = struct{}{}
			calls = append(calls, primaries.Call{Slot: slot, Function: "sonic_digests", Args: []any{0}})
		}
	}
	replies, err := z.calls(ctx, calls)
	if err != nil {
		return nil, err
	}
	at := Reached{}
	for _, reply := range replies {
		of, _, err := digestsOf(reply, 0)
		if err != nil {
			return nil, err
		}
		if _, own := of[z.name]; !own {
			return nil, fmt.Errorf("a primary of zone %s was restarted, or has taken over: run the command again", z.name)
		}
		for zone, id := range of {
			at[zone] = wire.Max(at[zone], after(id))
		}
	}
	return at, nil
}
