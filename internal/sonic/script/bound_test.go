package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// outboxBytes returns what the library counts as the stream's bytes, and what the stream takes.
func (z *zone) outboxBytes() (counted, taken int64) {
	z.fixture.t.Helper()
	cmd, err := z.call("sonic_unsent")
	require.NoError(z.fixture.t, err)
	_, err = fmt.Sscan(cmd.Val().([]any)[4].(string), &counted)
	require.NoError(z.fixture.t, err)
	taken, err = z.client.MemoryUsage(context.Background(), z.out, 0).Result()
	require.NoError(z.fixture.t, err)
	return counted, taken
}

// bound sets what the stream may hold.
func (z *zone) bound(bytes int, drops bool) {
	z.fixture.t.Helper()
	_, err := z.call("sonic_drop", false, bytes, drops)
	require.NoError(z.fixture.t, err)
}

// A command that changes a part of a large value ships that part.
func TestSmallWritesToLargeValuesHaveSmallEffects(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for name, row := range map[string]struct {
		first []any
		next  func(i int) []any
	}{
		"setbit":   {[]any{"set", "k", large}, func(i int) []any { return []any{"setbit", "k", i * 8, 1} }},
		"bitfield": {[]any{"set", "k", large}, func(i int) []any { return []any{"bitfield", "k", "INCRBY", "u8", i * 8, 1} }},
		"append":   {[]any{"set", "k", large}, func(int) []any { return []any{"append", "k", "x"} }},
		"setrange": {[]any{"set", "k", large}, func(i int) []any { return []any{"setrange", "k", i, "y"} }},
		"rename":   {[]any{"set", "k0", large}, func(i int) []any { return []any{"rename", fmt.Sprint("k", i), fmt.Sprint("k", i+1)} }},
		"copy":     {[]any{"append", "k", large}, func(i int) []any { return []any{"copy", "k", fmt.Sprint("k", i%3), "REPLACE"} }},
		"move":     {[]any{"rpush", "k", large, "x"}, func(i int) []any { return []any{"copy", "k", "k", "DB", 1, "REPLACE"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a, b := twoZones(t)
			a.write(row.first...)
			a.write(row.next(0)...) // ships the whole
			before, _ := a.outboxBytes()
			for i := 1; i <= 300; i++ {
				a.write(row.next(i)...)
			}
			after, taken := a.outboxBytes()
			assert.Less(t, after-before, int64(300*512), "bytes of effects of 300 commands")
			assert.Less(t, taken, int64(3*len(large)))
			w.drain()
			for db := range 2 {
				assert.Equal(t, a.data(db), b.data(db))
			}
		})
	}
}

// Past its bound the outbox takes no write, nor what a transaction copies, until it has room.
func TestBoundOfTheOutbox(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	value := strings.Repeat("x", 100_000)
	a.write("hset", "h", "f", value)
	refused := func(function string, args ...any) {
		t.Helper()
		before, _ := a.outboxBytes()
		_, err := a.call(function, args...)
		require.ErrorContains(t, err, "OOM the outbox is full")
		after, _ := a.outboxBytes()
		assert.Equal(t, before, after)
	}
	a.bound(1<<20, false)
	n := 0
	for ; ; n++ {
		if _, err := a.call("sonic_rename", "0", []string{"h", "g"}[n%2], []string{"g", "h"}[n%2]); err != nil {
			require.ErrorContains(t, err, "OOM the outbox is full")
			break
		}
		require.Less(t, n, 20, "commands that ship 100 kB each")
	}
	counted, taken := a.outboxBytes()
	assert.Greater(t, n, 5)
	assert.InDelta(t, taken, counted, 0.2*float64(taken), "of the stream")
	refused("sonic_set", "0", "k", "v")
	refused("sonic_del", "0", "h", "g")
	refused("sonic_many", "0", "SET 2", "k", "v")
	assert.NotContains(t, a.data(0), "k")

	a.bound(1<<30, false)
	_, err := a.call("sonic_set", "0t1", "k", "1")
	require.NoError(t, err)
	a.bound(1<<20, false)
	_, err = a.call("sonic_set", "0t1", "k", "2")
	require.NoError(t, err, "the transaction goes on")
	refused("sonic_copy", "0t1", []string{"h", "g"}[n%2], "copy")
	_, err = a.call("sonic_tx", "0t1")
	require.NoError(t, err)
	refused("sonic_set", "0t2", "k", "3")

	w.drain()
	for a.ship(1 << 20) { // the last shipment may not have been reported
	}
	_, err = a.call("sonic_shipped", a.last())
	require.NoError(t, err)
	counted, _ = a.outboxBytes()
	assert.Zero(t, counted)
	a.write("set", "k", "4")
	w.drain()
	assert.Equal(t, a.data(0), b.data(0))
}

// Where effects are dropped past the bound none is refused, and the state follows.
func TestBoundOfTheOutboxDrops(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.bound(1<<20, true)
	value := strings.Repeat("x", 100_000)
	for i := range 50 {
		a.write("set", fmt.Sprint("k", i%5), fmt.Sprint(i, value))
	}
	_, taken := a.outboxBytes()
	assert.Less(t, taken, int64(3<<19))
	w.drain()
	a.bound(1<<20, true)
	a.resend()
	w.drain()
	assert.Equal(t, a.data(0), b.data(0))
	assert.Len(t, a.data(0), 5)
}

// What a stream held before the library was opened counts until it is shipped.
func TestBoundOfTheOutboxAfterARestart(t *testing.T) {
	t.Parallel()
	w, a, _ := twoZones(t)
	for i := range 30 {
		a.write("set", fmt.Sprint("k", i), strings.Repeat("x", 100_000))
	}
	require.NoError(t, script.Replace(t.Context(), a.client))
	a.open("0-0")
	counted, taken := a.outboxBytes()
	assert.Equal(t, taken, counted)
	a.bound(1<<20, false)
	_, err := a.call("sonic_set", "0", "k", "v")
	require.ErrorContains(t, err, "OOM the outbox is full")
	w.drain()
	_, err = a.call("sonic_shipped", a.last())
	require.NoError(t, err)
	a.write("set", "k", "v")
}

// A small command of a transaction has large effects, past the bound.
func TestBoundOfTheOutboxWithinATransaction(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	noise := make([]byte, 1_000_000)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(noise)
	a.write("rpush", "l", string(noise))
	_, err := a.call("sonic_set", "0t1", "k", "1")
	require.NoError(t, err)
	a.bound(2<<20, false)
	n := 0
	for ; n < 100; n++ {
		if _, err := a.call("sonic_lmove", "0t1", []string{"l", "m"}[n%2], []string{"m", "l"}[n%2], "LEFT", "RIGHT"); err != nil {
			break
		}
	}
	counted, _ := a.outboxBytes()
	assert.Less(t, counted, int64(8<<20), "%d commands passed", n)
}

// What was in the stream before the library was opened is shipped, but for little.
func TestBytesOfTheOutboxAfterARestart(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	for i := range 30 {
		a.write("set", fmt.Sprint("k", i), strings.Repeat("x", 100_000))
	}
	list := a.client.XRange(t.Context(), a.out, "-", "+").Val()
	require.NoError(t, script.Replace(t.Context(), a.client))
	a.open("0-0")
	a.bound(1<<20, false)
	_, err := a.call("sonic_shipped", list[len(list)-3].ID)
	require.NoError(t, err)
	counted, taken := a.outboxBytes()
	assert.Less(t, counted, 2*taken)
	_, err = a.call("sonic_set", "0", "k", "v")
	assert.NoError(t, err)
}

// A transaction that fills the outbox and copies a key: what is in the stream must be shippable.
func TestATransactionIsNotDroppedInTheMiddle(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	value := strings.Repeat("x", 100_000)
	a.write("hset", "h", "f", value)
	w.drain()
	_, err := a.call("sonic_shipped", a.last())
	require.NoError(t, err)
	a.bound(1<<20, true)
	for i := range 40 {
		if _, err := a.call("sonic_rename", "0t1", []string{"h", "g"}[i%2], []string{"g", "h"}[i%2]); err != nil {
			require.ErrorContains(t, err, "OOM the outbox is full")
			break
		}
	}
	_, err = a.call("sonic_tx", "0t1")
	require.NoError(t, err)
	for i := range 20 { // the zone goes on: beats, and writes
		a.ship(1 << 20)
		_, err = a.call("sonic_shipped", a.last())
		require.NoError(t, err)
		_, _ = a.call("sonic_beat")
		a.write("set", fmt.Sprint("k", i), "v")
	}
	counted, taken := a.outboxBytes()
	assert.Less(t, counted, int64(1<<20), "the outbox was shipped; it takes %d", taken)
	w.drain()
	a.bound(1<<20, true)
	a.resend()
	w.drain()
	assert.Equal(t, a.data(0), b.data(0))
}
