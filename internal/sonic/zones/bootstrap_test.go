package zones_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/zones"
)

// lose empties the zone's Redis, which no Sonic serves from then on.
func (z *zone) lose() {
	z.t.Helper()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.open = false
	require.NoError(z.t, z.client.FlushAll(z.t.Context()).Err())
	require.NoError(z.t, z.client.Do(z.t.Context(), "FUNCTION", "FLUSH").Err())
}

// recover opens the Redis as the Sonic of a zone does that came back: it applies the zone's own effects that the Redis has lost.
func (z *zone) recover() {
	z.t.Helper()
	z.mu.Lock()
	last := "0-0"
	for _, m := range z.topic {
		require.NoError(z.t, z.apply(z.t.Context(), z.Name(), m))
		last = m.last
	}
	clear(z.at) // the subscriptions begin where they were made
	z.mu.Unlock()
	z.begin("2", last)
}

func (w *world) bootstrap(from, to string) error {
	b := zones.Bootstrap{Source: w.zones[from].Zone, Target: w.zones[to].Zone, Patience: 10 * time.Second}
	return b.Run(w.t.Context())
}

// settled waits until zones hold the same.
func (w *world) settled() {
	w.t.Helper()
	for _, other := range w.names[1:] {
		require.Empty(w.t, w.differences(w.names[0], other))
	}
}

func TestAnEmptiedZoneIsFilledWhileOthersWrite(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.fill()
	first := w.writing("a", "b", "c")
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	sums := first() // what b has acknowledged is shipped before it is lost
	w.settled()
	second := w.writing("a", "c")
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	_, err := b.client.HGet(t.Context(), "{sonic:0}boot", "0:c:0").Result()
	require.NoError(t, err, "counters have been copied while they changed")
	b.recover()
	third := w.writing("b")
	w.differences("a", "b")
	for _, more := range []map[string]int64{second(), third()} {
		for counter, n := range more {
			sums[counter] += n
		}
	}
	w.settled()
	for i := range 7 {
		counter := fmt.Sprint("c:", i)
		assert.Equal(t, strconv.FormatInt(sums[counter]+int64(i), 10), b.get(counter), "of fill and writing")
	}
	assert.Zero(t, b.client.Exists(t.Context(), "{sonic:0}boot").Val())
}

func TestABootstrapThatEndedHalfWayIsRunAgain(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.fill()
	stop := w.writing("a")
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	b.lose()
	ctx, cancel := context.WithCancel(t.Context())
	half := zones.Bootstrap{Source: w.zones["a"].Zone, Target: b.Zone, Progress: func(zones.Progress) { cancel() }}
	require.ErrorIs(t, half.Run(ctx), context.Canceled)
	require.Positive(t, b.client.DBSize(t.Context()).Val())
	err := b.fcall(t.Context(), "sonic_open", "b", "2", "0-0", "", "1", "a", "lww").Err()
	require.ErrorContains(t, err, "run sonic -bootstrap a again")
	b.behind(0, "SET", "left over", "v")

	require.NoError(t, w.bootstrap("a", "b"))
	b.recover()
	stop()
	w.settled()
	assert.Zero(t, b.client.Exists(t.Context(), "left over").Val())
}

func TestWhatCannotBeFilled(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.fill()
	require.ErrorContains(t, w.bootstrap("a", "b"), "holds the state of zone b")
	b := w.zones["b"]
	b.lose()
	b.behind(0, "SET", "k", "v")
	require.ErrorContains(t, w.bootstrap("a", "b"), "holds keys")
	b.lose()
	unknown := zones.Bootstrap{Source: w.zones["a"].Zone, Target: zones.New("d", b.client, lane)}
	require.ErrorContains(t, unknown.Run(t.Context()), "zone d is no zone of this one's")
}
