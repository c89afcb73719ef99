package script_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Zone a has more databases than zone b. What b cannot apply counts as diverged, whatever the
// effect, and the rest is applied; beats, answers and pruning go on.
func TestADatabaseThatAnotherZoneLacks(t *testing.T) {
	t.Parallel()
	w := newFixtureOf(t, rand.New(rand.NewPCG(1, 1)), []any{"lww", "n:", "none", "c:", "counter"}, map[string]string{"b": "4"}, "a", "b")
	a, b := w.zones[0], w.zones[1]
	ctx := context.Background()
	elsewhere := func(args ...any) {
		t.Helper()
		list := append([]any{"FCALL", "sonic_" + args[0].(string), 1, a.out, "15"}, args[1:]...)
		require.NoError(t, a.client.Do(ctx, list...).Err())
	}
	a.write("set", "before", "1")
	elsewhere("set", "s", "1")
	elsewhere("rpush", "l", "1")
	elsewhere("rpush", "l", "2")
	elsewhere("sadd", "m", "1")
	elsewhere("hset", "h", "f", "1")
	elsewhere("zadd", "z", "1", "m")
	elsewhere("pexpire", "h", "1000000")
	elsewhere("srem", "m", "1")
	elsewhere("del", "s")
	a.write("set", "behind", "1")
	drained := func() {
		t.Helper()
		for _, z := range w.zones {
			z.beat()
			for z.ship(1000) {
			}
		}
		for b.deliver(a) || a.deliver(b) {
		}
	}
	drained()
	assert.EqualValues(t, 2, b.client.Exists(ctx, "before", "behind").Val())
	assert.GreaterOrEqual(t, w.counts["diverged"], 9)
	// What b may have noted of them, or asked, is in nobody's way.
	require.NoError(t, a.client.Do(ctx, "FCALL", "sonic_overwrite", 1, a.out, "15", "l").Err())
	for range 5 {
		drained()
		a.prune(0)
		b.prune(0)
	}
	b.restart(false)
	drained()
}

// Zone b asks for the state of a key in a database that zone a does not have.
func TestAQuestionAboutADatabaseThatIsLacking(t *testing.T) {
	t.Parallel()
	w := newFixtureOf(t, rand.New(rand.NewPCG(1, 1)), []any{"lww", "n:", "none", "c:", "counter"}, map[string]string{"a": "4"}, "a", "b")
	a, b := w.zones[0], w.zones[1]
	last := "0-0"
	question := func(ms uint64, db string) string {
		first := wire.ID{Ms: ms, Seq: 0}
		m := w.pack(last, []wire.Entry{{ID: first, Effects: effectOf("N", "l", db, "k", "a")}})
		status, _ := a.apply(b, m, 0)
		last = m.last
		return status
	}
	now := uint64(time.Now().UnixMilli())
	assert.Equal(t, "applied", question(now+1, "9"))
	assert.Equal(t, "applied", question(now+2, "0"))
	a.beat()
}

// effectOf packs an effect.
func effectOf(words ...string) string {
	text := []byte{0x90 | byte(len(words))}
	for _, w := range words {
		text = append(append(text, 0xa0|byte(len(w))), w...)
	}
	return string(text)
}
