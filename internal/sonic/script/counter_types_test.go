package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Three zones make different types of one counter. Whatever the order in which they hear of each
// other, all of them end with the sum of the changes of the type that wins.
func TestTypesOfCountersConverge(t *testing.T) {
	t.Parallel()
	const seed, rounds, steps = 1, 100, 12
	w := newFixture(t, rand.New(rand.NewPCG(seed, seed)), "a", "b", "c")
	ctx := context.Background()
	type sums struct{ text, hash, zset int }
	found := map[string]int{}
	for round := range rounds {
		key := fmt.Sprint("c:", round)
		var done sums
		write := func(z *zone, kind int) {
			words := [][]any{{"incrby", key, 1}, {"hincrby", key, "f", 1}, {"zincrby", key, 1, "m"}}[kind]
			err := z.client.Do(ctx, append([]any{"FCALL", "sonic_" + words[0].(string), 1, z.out, "0"}, words[1:]...)...).Err()
			if err != nil {
				require.ErrorContains(t, err, "WRONGTYPE")
				return
			}
			*[]*int{&done.text, &done.hash, &done.zset}[kind]++
		}
		kinds := []int{0, 1, 2}
		w.r.Shuffle(3, func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		if round%4 == 0 { // no string
			kinds[0], kinds[1], kinds[2] = 1, 2, 1+w.r.IntN(2)
		}
		for range steps {
			i := w.r.IntN(3)
			z := w.zones[i]
			switch w.r.IntN(3) {
			case 0:
				write(z, kinds[i])
			case 1:
				write(z, kinds[w.r.IntN(3)])
			default:
				for z.ship(1 + w.r.IntN(3)) {
				}
				for _, o := range z.others() {
					for w.r.IntN(2) == 0 && o.deliver(z) {
					}
				}
			}
		}
		w.drain()
		for _, z := range w.zones {
			kind := z.client.Type(ctx, key).Val()
			switch {
			case done.text > 0:
				assert.Equal(t, strconv.Itoa(done.text), z.client.Get(ctx, key).Val(), "%s in zone %s, a %s", key, z.name, kind)
			case done.hash > 0:
				assert.Equal(t, strconv.Itoa(done.hash), z.client.HGet(ctx, key, "f").Val(), "%s in zone %s, a %s", key, z.name, kind)
			case done.zset > 0:
				assert.InDelta(t, done.zset, z.client.ZScore(ctx, key, "m").Val(), 0, "%s in zone %s, a %s", key, z.name, kind)
			}
			found[kind]++
		}
		require.False(t, t.Failed(), "round %d of seed %d", round, seed)
	}
	for _, kind := range []string{"string", "hash", "zset"} {
		assert.Positive(t, found[kind], kind)
	}
	assert.Positive(t, w.counts["diverged"])
}

// What was dropped of a type that lost in between is shipped, and changes nothing.
func TestADroppedChangeOfATypeThatLost(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	ctx := context.Background()
	_, err := a.call("sonic_drop", "1")
	require.NoError(t, err)
	a.write("hincrby", "c:1", "f", "5")
	b.write("incrby", "c:1", "3")
	w.drain()
	require.Equal(t, "3", a.client.Get(ctx, "c:1").Val())
	_, err = a.call("sonic_drop", "0")
	require.NoError(t, err)
	_, err = a.call("sonic_resend", "100")
	require.NoError(t, err)
	a.write("incrby", "c:1", "1")
	w.drain()
	for _, z := range w.zones {
		assert.Equal(t, "4", z.client.Get(ctx, "c:1").Val(), z.name)
	}
}
