package script_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func twoZones(t *testing.T) (w *fixture, a, b *zone) {
	t.Helper()
	w = newFixture(t, rand.New(rand.NewPCG(1, 1)), "a", "b")
	return w, w.zones[0], w.zones[1]
}

func (z *zone) write(args ...any) {
	z.fixture.t.Helper()
	list := append([]any{"FCALL", "sonic_" + args[0].(string), 1, z.out, "0"}, args[1:]...)
	require.NoError(z.fixture.t, z.client.Do(context.Background(), list...).Err())
}

// An entry that is larger than a message goes in parts. A part that comes twice does no harm; one
// that is missing is seen.
func TestApplyOfParts(t *testing.T) {
	t.Parallel()
	_, a, b := twoZones(t)
	a.write("set", "before", "1")
	a.write("set", "large", strings.Repeat("0123456789", 300_000))
	a.write("set", "after", "1")
	list, err := a.client.XRange(context.Background(), a.out, "-", "+").Result()
	require.NoError(t, err)
	entries := a.fixture.entriesOf(list)
	require.Len(t, entries, 3)
	require.True(t, a.ship(100))
	assert.Len(t, a.topic[0].entries, 1, "what is large goes alone")
	require.True(t, b.deliver(a))

	packer := wire.Packer{Tail: wire.Tail{Position: position(t, entries[0].ID.String())}}
	messages, _, err := packer.Pack(entries[1:2])
	require.NoError(t, err)
	require.Len(t, messages, 3)
	assert.Greater(t, messages[0].Header.Position, packer.Tail.Position)
	part := func(number string, payload []byte) string {
		t.Helper()
		cmd, err := b.call("sonic_apply", "a", 1, entries[0].ID.String(), entries[1].ID.String(), number, "7", payload)
		require.NoError(t, err)
		reply, err := cmd.StringSlice()
		require.NoError(t, err)
		return reply[0]
	}
	assert.Equal(t, "gap", part("2/3", messages[1].Payload), "the first is missing")
	assert.Equal(t, "part", part("1/3", messages[0].Payload))
	assert.Equal(t, "gap", part("3/3", messages[2].Payload))
	assert.Equal(t, "part", part("2/3", messages[1].Payload))
	assert.Equal(t, "duplicate", part("2/3", messages[1].Payload))
	assert.Equal(t, "part", part("1/3", messages[0].Payload), "redelivery from the first")
	assert.Equal(t, "part", part("2/3", messages[1].Payload))
	assert.Equal(t, "applied", part("3/3", messages[2].Payload))
	assert.Equal(t, "duplicate", part("3/3", messages[2].Payload))
	size, err := b.client.StrLen(context.Background(), "large").Result()
	require.NoError(t, err)
	assert.Equal(t, int64(3_000_000), size)
	left, err := b.client.Exists(context.Background(), stateKey(script.KeysOf(0), "part:a")).Result()
	require.NoError(t, err)
	assert.Zero(t, left)
}

// A large write is in several entries of the stream, none of which is large: who reads some of them
// knows what they take. What comes out of them is what went in, also in a Redis that takes no
// string of that size from clients.
func TestLargeWritesAreInPieces(t *testing.T) {
	t.Parallel()
	_, a, b := twoZones(t)
	ctx := context.Background()
	for _, z := range a.fixture.zones {
		require.NoError(t, z.client.ConfigSet(ctx, "proto-max-bulk-len", "1048576").Err())
	}
	for i := range 5 {
		a.write("append", strconv.Itoa(i), strings.Repeat(string(rune('a'+i)), 1_000_000))
	}
	for i := range 3 * 1024 {
		a.write("hset", "h", i, strings.Repeat("x", 1000))
	}
	a.write("rename", "h", "g")
	list, err := a.client.XRange(ctx, a.out, "-", "+").Result()
	require.NoError(t, err)
	for _, e := range list {
		for name, v := range e.Values {
			require.LessOrEqual(t, len(v.(string)), 64<<10, "%s of %s", name, e.ID)
		}
	}
	for a.ship(1000) {
		require.True(t, b.deliver(a))
	}
	require.Equal(t, a.data(0), b.data(0))
	require.Len(t, b.data(0), 6)
}

// A command whose effect would be too large is refused before it runs. The bound is lowered here:
// it is 2 GiB.
func TestEffectsThatWouldBeTooLargeAreRefused(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	ctx := context.Background()
	text, _, err := script.Library()
	require.NoError(t, err)
	lower := strings.Replace(text, "LARGEST = 2147483648", "LARGEST = 100000", 1)
	require.NotEqual(t, text, lower)
	require.NoError(t, a.client.FunctionLoadReplace(ctx, lower).Err())
	_, err = a.call("sonic_open", "a", 9, "0-0", "", 1, "b", "lww")
	require.NoError(t, err)
	for i := range 200 {
		a.write("sadd", "s", strings.Repeat("x", 990)+strconv.Itoa(i))
		a.write("sadd", "t", i)
	}
	before, held := a.client.XLen(ctx, a.out).Val(), a.data(0)
	for _, args := range [][]any{
		{"rename", "s", "u"}, {"renamenx", "s", "u"}, {"copy", "s", "u"}, {"move", "s", "1"}, {"sunionstore", "u", "t", "s"}, {"sort", "s", "ALPHA", "STORE", "u"},
		{"sdiffstore", "u", "s", "t"}, {"zunionstore", "u", "2", "s", "t"},
	} {
		_, err := a.call("sonic_"+args[0].(string), append([]any{"0"}, args[1:]...)...)
		require.ErrorContains(t, err, "SONICREFUSED", args)
		require.ErrorContains(t, err, "the limit of an effect is 100000", args)
	}
	require.Equal(t, held, a.data(0))
	require.Equal(t, before, a.client.XLen(ctx, a.out).Val())
	a.write("rename", "t", "u")
}

// What a message before left incomplete does not spoil the next one.
func TestApplyDropsIncompleteParts(t *testing.T) {
	t.Parallel()
	_, a, b := twoZones(t)
	cmd, err := b.call("sonic_apply", "a", 1, "0-0", "5-9", "1/2", "0", strings.Repeat("x", 100))
	require.NoError(t, err)
	reply, err := cmd.StringSlice()
	require.NoError(t, err)
	require.Equal(t, "part", reply[0])
	a.write("set", "k", "v")
	require.True(t, a.ship(10))
	require.True(t, b.deliver(a))
	assert.Equal(t, "v", b.client.Get(context.Background(), "k").Val())
}

// A clock that is far behind the stream's would use up the sequence numbers of one millisecond.
func TestIDsFitIntoPositions(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	a.open("4102444800000-1048570") // in the year 2100
	for range 20 {
		a.write("set", "k", "v")
	}
	a.write("set", "k", strings.Repeat("x", 3<<20))
	entries, err := a.client.XRange(context.Background(), a.out, "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, a.fixture.entriesOf(entries), 21)
	for _, e := range entries {
		position(t, e.ID)
	}
	assert.Equal(t, "4102444800001-1", entries[5].ID, "the next millisecond")
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	for want, args := range map[string][]any{
		"SONICZONE this Redis belongs to ":   {"c", 9, "0-0", "", 1, "b", "lww"},
		"SONICEPOCH epoch 0 is lower than 1": {"a", 0, "0-0", "", 1, "b", "lww"},
	} {
		_, err := a.call("sonic_open", args...)
		assert.ErrorContains(t, err, want)
	}
	require.NoError(t, a.client.HSet(context.Background(), script.KeysOf(0).Meta, "layout", "3").Err())
	_, err := a.call("sonic_open", "a", 9, "0-0", "", 1, "b", "lww")
	assert.ErrorContains(t, err, "SONICLAYOUT")
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	for want, args := range map[string][]any{
		"SONICNOTREADY zone c is not in":         {"c", 1, "0-0", "1-0", "", "0", "\x90"},
		"SONICPAYLOAD the message of b up to 1-": {"b", 1, "0-0", "1-0", "", "0", "\x91"},
	} {
		_, err := a.call("sonic_apply", args...)
		assert.ErrorContains(t, err, want)
	}
	_, at := a.apply(a.others()[0], stored{prev: "0-0", last: "1-0", parts: [][]byte{[]byte("\x90")}}, 3)
	assert.Equal(t, 3, at, "nothing was applied before")
}

// An effect that cannot be applied does not stop those behind it.
func TestApplyCountsWhatCannotBeApplied(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	require.NoError(t, b.client.Set(context.Background(), "c:x", "text", 0).Err()) // past Sonic
	a.write("incrby", "c:x", 1)
	a.write("set", "k", "v")
	w.drain()
	assert.Equal(t, 1, w.counts["diverged"])
	assert.Equal(t, "v", b.client.Get(context.Background(), "k").Val())
}

func TestShippedTrims(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	a.write("set", "k", "1")
	a.write("set", "k", "2")
	ids, err := a.client.XRange(context.Background(), a.out, "-", "+").Result()
	require.NoError(t, err)
	shipped := func(id string) []string {
		t.Helper()
		cmd, err := a.call("sonic_shipped", id)
		require.NoError(t, err)
		list, err := cmd.Slice()
		require.NoError(t, err)
		return []string{strings.Repeat("x", int(list[0].(int64))), list[1].(string)}
	}
	assert.Equal(t, []string{"x", ids[0].ID}, shipped(ids[0].ID))
	assert.Equal(t, []string{"", ids[1].ID}, shipped(ids[1].ID))
	assert.Equal(t, []string{"", ids[1].ID}, shipped(ids[0].ID), "never back")
	a.restart(false)
	assert.Equal(t, ids[1].ID, a.table("sonic_state")["last"], "an empty stream keeps its last id")
}

// A Redis that came back older than it was takes no writes before it knows again what it told
// others to know.
func TestNotReadyBehindWhatItTold(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	b.keepCopy()
	a.write("set", "k", "v")
	w.drain()
	b.beat()
	for b.ship(100) {
	}
	b.restart(true)
	require.False(t, b.ready)
	found := b.table("sonic_state")
	assert.Equal(t, []any{"a", a.last()}, found["behind"])
	_, err := b.call("sonic_set", "0", "k", "x")
	require.ErrorContains(t, err, "SONICNOTREADY")
	require.True(t, b.deliver(a))
	assert.True(t, b.ready)
	b.write("set", "k", "x")
}

// A message in parts that cannot be read is refused each time.
func TestAnUnreadableMessageInPartsIsRefusedEachTime(t *testing.T) {
	t.Parallel()
	_, _, b := twoZones(t)
	for i, want := range []string{"", "SONICPAYLOAD", "SONICPAYLOAD"} {
		part := "2/2"
		if i == 0 {
			part = "1/2"
		}
		cmd, err := b.call("sonic_apply", "a", 1, "0-0", "5-1", part, "m", "\xc1")
		if want == "" {
			require.NoError(t, err)
			continue
		}
		assert.ErrorContains(t, err, want, "try %d: %v", i, cmd.Val())
	}
}
