package script

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPositionAndItsInverse(t *testing.T) {
	for _, id := range []string{"0-0", "0-1", "1795341757671-0", "1795341757671-1048575", "8796093022207-1048575"} {
		position, err := Position(id)
		require.NoError(t, err, id)
		assert.GreaterOrEqual(t, position, int64(0), id)
		assert.Equal(t, id, ID(position))
	}
	for _, id := range []string{
		"", "-", "1", "1-", "-1", "1--1", "+1-0", "1-+1", "01-0", "1-01", "1-2-3", "a-b", "1-1048576", "8796093022208-0", "1_0-0", "*",
	} {
		_, err := Position(id)
		assert.ErrorIs(t, err, ErrID, id)
	}
}

func TestPositionsAreInTheOrderOfIDs(t *testing.T) {
	a, err := Position("1795341757671-1048575")
	require.NoError(t, err)
	b, err := Position("1795341757672-0")
	require.NoError(t, err)
	assert.Less(t, a, b)
}

func entry(n int, effects string) Entry { return Entry{ID: strconv.Itoa(n) + "-0", Effects: effects} }

// payloads builds packs of all entries, and fails when one takes none.
func payloads(t *testing.T, entries []Entry) []Pack {
	t.Helper()
	var packs []Pack
	for len(entries) > 0 {
		p, taken, err := Build(entries)
		require.NoError(t, err)
		require.Positive(t, taken)
		require.Equal(t, entries[0].ID, p.First)
		require.Equal(t, entries[taken-1].ID, p.Last)
		entries = entries[taken:]
		packs = append(packs, p)
	}
	return packs
}

func TestBuildTakesNothingOfNothing(t *testing.T) {
	p, taken, err := Build(nil)
	require.NoError(t, err)
	assert.Zero(t, taken)
	assert.Empty(t, p.Payload)
}

func TestBuildKeepsToTheBounds(t *testing.T) {
	var entries []Entry
	for i := range 3 * MaxPackEntries {
		entries = append(entries, entry(i+1, "e"))
	}
	packs := payloads(t, entries)
	assert.Len(t, packs, 3)

	entries = nil
	for i := range 64 {
		entries = append(entries, entry(i+1, strings.Repeat("x", 10_000)))
	}
	var got []Entry
	for _, p := range payloads(t, entries) {
		assert.LessOrEqual(t, len(p.Payload), MaxPackBytes)
		assert.Len(t, p.Parts(), 1)
		part, err := Entries(p.Payload)
		require.NoError(t, err)
		got = append(got, part...)
	}
	assert.Equal(t, entries, got)
}

func TestBuildDoesNotSplitTransactions(t *testing.T) {
	var entries []Entry
	for i := range MaxPackEntries - 2 {
		entries = append(entries, entry(i+1, "e"))
	}
	for range 4 {
		entries = append(entries, Entry{ID: strconv.Itoa(len(entries)+1) + "-0", Effects: "e", Tx: "a1"})
	}
	_, taken, err := Build(entries)
	require.NoError(t, err)
	assert.Equal(t, MaxPackEntries-2, taken, "the transaction may go on")

	_, taken, err = Build(entries[MaxPackEntries-2:])
	require.NoError(t, err)
	assert.Zero(t, taken, "nothing but the beginning of a transaction")

	entries = append(entries, Entry{ID: "9000-0", Tx: "a1"}, entry(9001, "e"))
	packs := payloads(t, entries)
	require.Len(t, packs, 2)
	assert.Equal(t, "9001-0", packs[1].Last)
	got, err := Entries(packs[1].Payload)
	require.NoError(t, err)
	assert.Len(t, got, 5, "the end of a transaction has no effects")

	// A transaction larger than a pack goes alone.
	entries = []Entry{entry(1, "e")}
	for i := range 2 * MaxPackEntries {
		entries = append(entries, Entry{ID: strconv.Itoa(i+2) + "-0", Effects: "e", Tx: "b"})
	}
	entries = append(entries, Entry{ID: "9000-0", Tx: "b"}, entry(9001, "e"))
	assert.Len(t, payloads(t, entries), 3)
}

// A transaction whose end is missing ends where another begins, and before an entry without one.
func TestBuildEndsATransactionBeforeWhatIsNotOfIt(t *testing.T) {
	_, taken, err := Build([]Entry{
		{ID: "1-0", Effects: "e", Tx: "a"}, {ID: "2-0", Effects: "e", Tx: "b"}, {ID: "3-0", Tx: "b"}, {ID: "4-0", Effects: "e", Tx: "c"},
	})
	require.NoError(t, err)
	assert.Equal(t, 3, taken)
}

func TestBuildRefusesIDs(t *testing.T) {
	for _, entries := range [][]Entry{
		{{ID: "x", Effects: "e"}},
		{{ID: "1-1048576", Effects: "e"}},
		{{ID: "2-0", Effects: "e"}, {ID: "1-0", Effects: "e"}},
		{{ID: "2-0", Effects: "e"}, {ID: "2-0", Effects: "e"}},
	} {
		_, _, err := Build(entries)
		assert.ErrorIs(t, err, ErrID, entries)
	}
}

func TestPartsAndTheirPositions(t *testing.T) {
	large := strings.Repeat("0123456789", 350_000) // 3.5 MB
	packs := payloads(t, []Entry{entry(1, "e"), {ID: "5-7", Effects: large}, entry(6, "e")})
	require.Len(t, packs, 3)
	parts := packs[1].Parts()
	require.Len(t, parts, 4)
	var whole []byte
	before := packs[0].Position(0)
	for i, part := range parts {
		assert.LessOrEqual(t, len(part), PartBytes)
		assert.Greater(t, packs[1].Position(i), before)
		before = packs[1].Position(i)
		whole = append(whole, part...)
	}
	last, err := Position("5-7")
	require.NoError(t, err)
	assert.Equal(t, last, before)
	got, err := Entries(whole)
	require.NoError(t, err)
	assert.Equal(t, []Entry{{ID: "5-7", Effects: large}}, got)
}

func TestEffects(t *testing.T) {
	packed := string(appendString(appendString(appendString(appendString(appendArray(nil, 4), "D"), "l"), "0"), "key"))
	got, err := Effects(packed + packed)
	require.NoError(t, err)
	assert.Equal(t, [][]string{{"D", "l", "0", "key"}, {"D", "l", "0", "key"}}, got)
	for _, bad := range []string{"x", packed[:len(packed)-1], packed + "\x91", "\x93\xa1D\xa1l\xa10", "\xdd\xff\xff\xff\xff", "\xdc\x01"} {
		_, err := Effects(bad)
		assert.ErrorIs(t, err, ErrPayload, "%q", bad)
	}
}

func TestEntriesRefuses(t *testing.T) {
	pair := func(id string) []byte { return appendString(appendString(nil, id), "e") }
	for name, bad := range map[string][]byte{
		"nothing":         nil,
		"no array":        []byte("\xa1x"),
		"an odd number":   append(appendArray(nil, 1), pair("1-0")...),
		"no id":           append(appendArray(nil, 2), pair("x")...),
		"descending ids":  append(append(appendArray(nil, 4), pair("2-0")...), pair("1-0")...),
		"bytes behind":    append(append(appendArray(nil, 2), pair("1-0")...), 1),
		"a cut string":    append(appendArray(nil, 2), "\xd9\xffx"...),
		"a huge array":    []byte("\xdd\xff\xff\xff\xff"),
		"a huge string":   append(appendArray(nil, 2), "\xdb\xff\xff\xff\xff"...),
		"a number":        []byte("\x92\x01\x02"),
		"a cut length":    []byte("\xdc\x00"),
		"a cut length, 4": append(appendArray(nil, 2), "\xdb\xff"...),
	} {
		_, err := Entries(bad)
		assert.ErrorIs(t, err, ErrPayload, name)
	}
}

func FuzzEntries(f *testing.F) {
	p, _, err := Build([]Entry{entry(1, "e"), entry(2, strings.Repeat("x", 300)), entry(3, strings.Repeat("y", 70_000))})
	require.NoError(f, err)
	f.Add(p.Payload)
	f.Add([]byte("\x92\xa31-0\xa1e"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		entries, err := Entries(payload)
		if err != nil {
			return
		}
		var again []Entry
		for len(entries) > len(again) {
			p, taken, err := Build(entries[len(again):])
			require.NoError(t, err)
			require.Positive(t, taken)
			part, err := Entries(p.Payload)
			require.NoError(t, err)
			for _, e := range entries[len(again) : len(again)+taken] {
				if e.Effects == "" { // is not packed
					part = append(part, e)
				}
			}
			require.Len(t, part, taken)
			again = append(again, entries[len(again):len(again)+taken]...)
		}
	})
}

func FuzzEffects(f *testing.F) {
	f.Add("\x94\xa1D\xa1l\xa10\xa3key")
	f.Fuzz(func(t *testing.T, packed string) {
		effects, err := Effects(packed)
		if err != nil {
			return
		}
		var again []byte
		for _, effect := range effects {
			again = appendArray(again, len(effect))
			for _, value := range effect {
				again = appendString(again, value)
			}
		}
		got, err := Effects(string(again))
		require.NoError(t, err)
		require.Equal(t, effects, got)
	})
}

// Whatever the entries, packs hold all of them, in order, and their positions rise.
func TestBuildOfRandomEntries(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	for range 50 {
		var entries, filled []Entry
		tx, ms := "", 1
		for range r.IntN(2000) {
			ms += 1 + r.IntN(3)
			e := entry(ms, strings.Repeat("e", 1+r.IntN(3000)))
			switch {
			case tx == "" && r.IntN(10) == 0:
				tx = strconv.Itoa(ms)
				e.Tx = tx
			case tx != "" && r.IntN(20) == 0:
				e.Tx, e.Effects, tx = tx, "", ""
			case tx != "":
				e.Tx = tx
			}
			entries = append(entries, e)
		}
		entries = append(entries, entry(ms+10, "end"))
		for _, e := range entries {
			if e.Effects != "" {
				filled = append(filled, Entry{ID: e.ID, Effects: e.Effects})
			}
		}
		var got []Entry
		before := int64(-1)
		for _, p := range payloads(t, entries) {
			for i := range p.Parts() {
				require.Greater(t, p.Position(i), before)
				before = p.Position(i)
			}
			part, err := Entries(p.Payload)
			require.NoError(t, err)
			got = append(got, part...)
		}
		require.Equal(t, filled, got)
	}
}
