package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Policy none: each key has one writer. Zone b copies a key of zone a, which changes at the same time.
func TestCopyOfAnotherZonesKey(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("set", "n:a", "old")
	w.drain()
	a.write("set", "n:a", "new")
	b.write("copy", "n:a", "n:b")
	w.drain()
	assert.Equal(t, a.data(0), b.data(0))
}

// Policy none, one writer: what is copied or renamed was dropped, and not shipped since.
func TestRenameOfWhatWasDropped(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"copy", "rename"} {
		w, a, b := twoZones(t)
		a.write("set", "n:k", "old")
		w.drain()
		_, err := a.call("sonic_drop", 1)
		require.NoError(t, err)
		a.write("set", "n:k", "new")
		_, err = a.call("sonic_drop", 0)
		require.NoError(t, err)
		a.write(command, "n:k", "n:l")
		w.drain()
		a.resend()
		w.drain()
		assert.Equal(t, a.data(0), b.data(0), command)
	}
}

// A zone whose other zones' keys of policy none are in a database that it lacks.
func TestMoveToADatabaseOfWhatAnotherLacks(t *testing.T) {
	t.Parallel()
	w := newFixtureOf(t, rand.New(rand.NewPCG(1, 1)), []any{"lww", "n:", "none"}, map[string]string{"b": "4"}, "a", "b")
	a, b := w.zones[0], w.zones[1]
	for _, key := range []string{"n:k", "k"} {
		require.NoError(t, a.client.Do(t.Context(), "FCALL", "sonic_rpush", 1, a.out, "15", key, "v").Err())
		require.NoError(t, a.client.Do(t.Context(), "FCALL", "sonic_move", 1, a.out, "15", key, "0").Err())
	}
	w.drain()
	assert.Equal(t, a.data(0), b.data(0))
}

// A PFADD that fails has changed the key.
func TestAPFADDThatFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	ctx := context.Background()
	hll := "HYLL\x01\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x80" + strings.Repeat("\x80\xa0", 4096) // registers of the first half, none of the second
	a.write("set", "h", hll)
	a.write("setbit", "h", 63, 1) // ships the whole
	a.write("setbit", "h", 63, 0)
	w.drain()
	require.Equal(t, a.data(0), b.data(0))
	// elements of the first half, that count more than 1, then one of the second half
	changed := false
	for i := 0; i < 200 && !changed; i++ {
		before := a.client.Get(ctx, "h").Val()
		_, err := a.call("sonic_pfadd", "0", "h", fmt.Sprint("x", i), fmt.Sprint("y", i), fmt.Sprint("z", i))
		after := a.client.Get(ctx, "h").Val()
		if err != nil && before != after && len(before) == len(after) {
			changed = true
		} else if err == nil {
			w.drain()
		} else if before != after {
			continue // seen by its length
		}
	}
	require.True(t, changed)
	a.write("append", "h", "x")
	w.drain()
	assert.Equal(t, a.client.Get(ctx, "h").Val(), b.client.Get(ctx, "h").Val())
}
