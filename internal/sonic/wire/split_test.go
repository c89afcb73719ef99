package wire_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// packed returns effects as the library packs them.
func packed(effects ...[]string) string {
	var b []byte
	for _, effect := range effects {
		b = append(b, 0xdc, byte(len(effect)>>8), byte(len(effect)))
		for _, v := range effect {
			b = append(b, 0xdb, byte(len(v)>>24), byte(len(v)>>16), byte(len(v)>>8), byte(len(v)))
			b = append(b, v...)
		}
	}
	return string(b)
}

func set(key, value string) []string { return []string{"S", "l", "0", key, value, ""} }

// unpacked returns id and effect of all effects of a payload, in order.
func unpacked(t *testing.T, payload []byte) (all []string) {
	t.Helper()
	entries, err := wire.Entries(payload)
	require.NoError(t, err)
	for _, e := range entries {
		effects, err := wire.Effects(e.Effects)
		require.NoError(t, err)
		for _, effect := range effects {
			all = append(all, e.ID.String()+" "+strings.Join(effect.Values, " "))
		}
	}
	return all
}

func payloadOf(entries ...wire.Entry) []byte {
	payload, _ := wire.Payload(entries)
	return payload
}

func TestSplitBySlot(t *testing.T) {
	id := func(ms uint64) wire.ID { return wire.ID{Ms: ms} }
	payload := payloadOf(
		wire.Entry{ID: id(1), Effects: packed(set("{a}1", "x"), set("{b}1", "x"), set("{a}2", "y"))},
		wire.Entry{ID: id(2), Effects: packed([]string{"_", "n", "0", "", "b", "5-0", "c", "6-1"})},
		wire.Entry{ID: id(3), Effects: packed([]string{"P", "n", "0", "{b}channel", "text"})},
		wire.Entry{ID: id(4), Effects: packed([]string{"_", "n", "0", "", "b", "7-0"}, []string{"D", "l", "0", "{a}1"})},
	)
	split, err := wire.SplitBySlot(payload)
	require.NoError(t, err)
	slots := split.Slots
	assert.Empty(t, split.OtherDatabases)
	assert.Equal(t, map[string]wire.ID{"b": id(7), "c": {Ms: 6, Seq: 1}}, split.Reached)
	require.Len(t, slots, 2)
	assert.Equal(t, cluster.Slot([]byte("a")), slots[0].Slot)
	assert.Equal(t, id(4), slots[0].Last)
	assert.Equal(t, []string{"1-0 S l 0 {a}1 x ", "1-0 S l 0 {a}2 y ", "4-0 D l 0 {a}1"}, unpacked(t, slots[0].Payload))
	assert.Equal(t, cluster.Slot([]byte("b")), slots[1].Slot)
	assert.Equal(t, id(3), slots[1].Last)
	assert.Equal(t, []string{"1-0 S l 0 {b}1 x ", "3-0 P n 0 {b}channel text"}, unpacked(t, slots[1].Payload))

	split, err = wire.SplitBySlot(payloadOf())
	require.NoError(t, err)
	assert.Empty(t, split.Slots)
	assert.Empty(t, split.Reached)
}

// A flush is in every slot, between the effects before and behind it. What is of another database
// than 0 is in none.
func TestSplitOfFlushesAndDatabases(t *testing.T) {
	id := func(ms uint64) wire.ID { return wire.ID{Ms: ms} }
	in := func(db, op string) []string { return []string{op, "l", db, "k", "v", ""} }
	split, err := wire.SplitBySlot(payloadOf(
		wire.Entry{ID: id(1), Effects: packed(set("k", "old"), in("3", "S"), in("3", "S"), in("3", "N"))},
		wire.Entry{ID: id(2), Effects: packed([]string{"F", "l", "5", "", "3", "0"})},
		wire.Entry{ID: id(3), Effects: packed(in("9", "D"), set("k", "new"), in("3", "P"))},
		wire.Entry{ID: id(4), Effects: packed([]string{"F", "l", "5", "", "3"})},
	))
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"3": 2, "9": 1}, split.OtherDatabases)
	require.Len(t, split.Slots, cluster.Slots)
	const flush = "2-0 F l 0 "
	found := map[int]bool{}
	for _, s := range split.Slots {
		found[s.Slot] = true
		want, last := []string{flush}, id(2)
		if s.Slot == cluster.Slot([]byte("k")) {
			want, last = []string{"1-0 S l 0 k old ", flush, "3-0 S l 0 k new ", "3-0 P l 3 k v "}, id(3)
		}
		require.Equal(t, want, unpacked(t, s.Payload))
		require.Equal(t, last, s.Last)
	}
	assert.Len(t, found, cluster.Slots)

	split, err = wire.SplitBySlot(payloadOf(wire.Entry{ID: id(1), Effects: packed([]string{"F", "l", "5", ""})}))
	require.NoError(t, err)
	assert.Empty(t, split.Slots)
	assert.Empty(t, split.OtherDatabases, "there is nothing to delete")
}

func TestPayloadsThatCannotBeSplit(t *testing.T) {
	for name, c := range map[string]struct {
		effects string
		want    error
	}{
		"unknown":               {packed([]string{"Q", "l", "0", "k"}), wire.ErrEffect},
		"two letters":           {packed([]string{"SS", "l", "0", "k"}), wire.ErrEffect},
		"no letter":             {packed([]string{"", "l", "0", "k"}), wire.ErrEffect},
		"short":                 {packed([]string{"D", "l", "0"}), wire.ErrPayload},
		"short beat":            {packed([]string{"_"}), wire.ErrPayload},
		"a zone alone":          {packed([]string{"_", "n", "0", "", "b"}), wire.ErrPayload},
		"a cursor that is none": {packed([]string{"_", "n", "0", "", "b", "x"}), wire.ErrPayload},
		"no msgpack":            {"x", wire.ErrPayload},
		"cut":                   {packed(set("k", "v"))[:20], wire.ErrPayload},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.SplitBySlot(payloadOf(wire.Entry{ID: wire.ID{Ms: 1}, Effects: c.effects}))
			assert.ErrorIs(t, err, c.want)
		})
	}
	_, err := wire.SplitBySlot([]byte("x"))
	assert.ErrorIs(t, err, wire.ErrPayload)
}

// Each effect is in the payload of its key's slot, once, in the order in which it was.
func TestSplitKeepsAllEffects(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		want := map[int][]string{}
		last := map[int]wire.ID{}
		var entries []wire.Entry
		for n := range r.IntN(60) {
			id := wire.ID{Ms: uint64(n / 3), Seq: uint64(n%3 + 1)}
			var effects [][]string
			for range r.IntN(8) {
				key := fmt.Sprintf("{%d}%d", r.IntN(5), r.IntN(3))
				effect := []string{string("SRLDHAZhazEIijPNO"[r.IntN(17)]), "l", "0", key}
				for range r.IntN(30) {
					effect = append(effect, strings.Repeat("v", r.IntN(400)))
				}
				effects = append(effects, effect)
				slot := cluster.Slot([]byte(key))
				want[slot] = append(want[slot], id.String()+" "+strings.Join(effect, " "))
				last[slot] = id
			}
			entries = append(entries, wire.Entry{ID: id, Effects: packed(effects...)})
		}
		payload := payloadOf(entries...)
		split, err := wire.SplitBySlot(payload)
		require.NoError(t, err)
		require.Len(t, split.Slots, len(want))
		for _, s := range split.Slots {
			assert.Equal(t, want[s.Slot], unpacked(t, s.Payload), "seed %d", seed)
			assert.Equal(t, last[s.Slot], s.Last)
		}
		// Whatever happens to a payload, it is split or refused.
		for range 50 {
			broken := slices.Clone(payload)
			if len(broken) > 0 {
				broken[r.IntN(len(broken))] = byte(r.Uint32())
			}
			_, _ = wire.SplitBySlot(broken[:r.IntN(len(broken)+1)])
		}
	}
}
