package zones_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/zones"
)

func (w *zoneGroup) repair(local, peer, from string) (repaired int, left []string) {
	w.t.Helper()
	r := zones.Repair{Check: w.check(local, peer), From: from}
	repaired, rest, err := r.Run(w.t.Context())
	require.NoError(w.t, err)
	left = []string{}
	for _, l := range rest {
		if l.Changing && isBusy(l.Name) {
			continue
		}
		left = append(left, l.Name)
		require.NotEmpty(w.t, l.Why)
	}
	return repaired, left
}

func (z *zone) get(key string) string {
	z.t.Helper()
	v, err := z.client.Get(z.t.Context(), key).Result()
	require.NoError(z.t, err)
	return v
}

func TestDriftIsRepaired(t *testing.T) {
	t.Parallel()
	for local, names := range map[string][]string{
		"a": {"a", "b", "c"}, "a of a cluster": {"a*", "b", "c"}, "b of a cluster": {"a", "b*", "c"},
	} {
		t.Run(local, func(t *testing.T) {
			w := newZones(t, names...)
			local := local[:1]
			drift := w.drift()
			stop := w.writing("a", "b", "c")
			defer stop()
			peer := map[string]string{"a": "b", "b": "a"}[local]
			repaired, left := w.repair(local, peer, "")
			require.Equal(t, len(drift), repaired)
			require.Empty(t, left)
			require.Empty(t, w.differences(local, peer))
			assert.Empty(t, w.differences("c", "a"), "the third zone has the same")
			// Versions are the same: a zone that has the key keeps it, and this one is asked first.
			assert.Equal(t, "v1", w.zones["b"].get("str1"))
			assert.Equal(t, map[string]string{"a": "v2", "b": "other"}[local], w.zones[peer].get("str2"))
		})
	}
}

func TestTheNewerStateIsTaken(t *testing.T) {
	t.Parallel()
	for name, names := range pairs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newerStateIsTaken(t, names)
		})
	}
}

func newerStateIsTaken(t *testing.T, names []string) {
	t.Helper()
	w := newZones(t, names...)
	w.fill()
	require.Empty(t, w.differences("a", "b"))
	a, b := w.zones["a"], w.zones["b"]
	// Zone b misses messages of zone a.
	b.mu.Lock()
	a.write(0, "set", "str1", "newer")
	a.write(0, "hdel", "hash2", "a")
	a.write(0, "del", "set3")
	a.write(0, "sadd", "set4", "more")
	a.mu.Lock()
	require.NoError(t, a.ship(t.Context()))
	missed := a.topic[b.at["a"]:]
	b.at["a"] = len(a.topic)
	a.mu.Unlock()
	for _, m := range missed {
		require.NoError(t, b.pass(t.Context(), "a", m))
	}
	b.mu.Unlock()
	require.Equal(t, []string{"0 hash2", "0 set3", "0 set4", "0 str1"}, w.differences("b", "a"))

	repaired, left := w.repair("b", "a", "")
	assert.Equal(t, 4, repaired)
	assert.Empty(t, left)
	assert.Equal(t, "newer", b.get("str1"))
	assert.Zero(t, b.client.Exists(t.Context(), "set3").Val())
	assert.False(t, b.client.HExists(t.Context(), "hash2", "a").Val())
	assert.Empty(t, w.differences("a", "b"))
}

func TestWhatOnlyAnOperatorCanRepair(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	w.fill()
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	b.behind(0, "HSET", "n:a:f0", "a", "other")
	b.behind(0, "INCRBY", "c:7", 5)
	b.behind(0, "SET", "str1", "other")

	repaired, left := w.repair("a", "b", "")
	assert.Equal(t, 1, repaired)
	assert.Equal(t, []string{"c:7", "n:a:f0"}, left)

	repaired, left = w.repair("b", "a", "a")
	assert.Equal(t, 1, repaired)
	assert.Equal(t, []string{"c:7"}, left)
	assert.Equal(t, "0", b.client.HGet(t.Context(), "n:a:f0", "a").Val())

	b.behind(0, "DECRBY", "c:7", 5)
	assert.Empty(t, w.differences("a", "b"))

	r := zones.Repair{Check: w.check("a", "b"), From: "c"}
	_, _, err := r.Run(t.Context())
	require.ErrorContains(t, err, "zone c is not one of the two")
}
