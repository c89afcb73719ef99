package wire

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func entry(n int, effects string) Entry { return Entry{ID: ID{Ms: uint64(n)}, Effects: effects} }

func made(n int) []Entry {
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = entry(i+1, "x")
	}
	return entries
}

func transaction(name string, effects ...string) []Entry {
	var entries []Entry
	for _, e := range effects {
		entries = append(entries, Entry{Effects: e, Transaction: name})
	}
	return append(entries, Entry{Transaction: name})
}

func TestAMessageTakesWhatFits(t *testing.T) {
	large := []Entry{{Effects: strings.Repeat("x", PackBytes/2)}, {Effects: strings.Repeat("x", PackBytes/2)}, {Effects: "x"}}
	huge := []Entry{{Effects: strings.Repeat("x", 2*PackBytes)}, {Effects: "x"}}
	for name, c := range map[string]struct {
		entries []Entry
		one     bool
		want    int
	}{
		"nothing":                     {nil, false, 0},
		"all":                         {made(3), false, 3},
		"the first":                   {made(3), true, 1},
		"as many as a message has":    {made(PackEntries + 1), false, PackEntries},
		"as many bytes":               {large, false, 1},
		"one that is too large":       {huge, false, 1},
		"a transaction":               {transaction("t", "a", "b"), false, 3},
		"a transaction as the first":  {append(transaction("t", "a", "b"), made(1)...), true, 3},
		"what is before its end":      {append(made(2), transaction("t", "a")[:1]...), false, 2},
		"not one without its end":     {transaction("t", "a", "b")[:2], false, 0},
		"one that never ended":        {append(transaction("t", "a")[:1], made(1)...), false, 2},
		"two, one behind the other":   {append(transaction("t", "a"), transaction("u", "a")...), false, 4},
		"one more than a message has": {append(made(PackEntries-1), transaction("t", "a", "b")...), false, PackEntries - 1},
		"one larger than a message":   {append(transaction("t", strings.Split(strings.Repeat("a", PackEntries), "")...), made(1)...), false, PackEntries + 1},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, Cut(c.entries, c.one)) })
	}
}

// stored packs all entries as a shipper does, and fails when Cut takes none.
func stored(t *testing.T, entries []Entry) (messages [][]Message) {
	t.Helper()
	p := Packer{Origin: "a", Tail: Tail{Position: -1}}
	for len(entries) > 0 {
		n := Cut(entries, false)
		require.Positive(t, n)
		packed, ends, err := p.Pack(entries[:n])
		require.NoError(t, err)
		for i, m := range packed {
			require.Equal(t, Header{
				Origin: "a", Prev: p.Tail.Last, First: entries[0].ID, Last: entries[n-1].ID, Count: ends.Count,
				Position: m.Header.Position, Part: i + 1, Parts: len(packed),
			}, m.Header)
			require.LessOrEqual(t, len(m.Payload), PartBytes)
			require.Greater(t, m.Header.Position, p.Tail.Position)
			p.Tail.Position = m.Header.Position
		}
		require.Equal(t, ends.Position, p.Tail.Position)
		p.Tail, entries, messages = ends, entries[n:], append(messages, packed)
	}
	return messages
}

// whole joins the parts of a payload.
func whole(parts []Message) (payload []byte) {
	for _, p := range parts {
		payload = append(payload, p.Payload...)
	}
	return payload
}

func TestPackKeepsToTheBounds(t *testing.T) {
	assert.Len(t, stored(t, made(3*PackEntries)), 3)
	var entries, got []Entry
	for i := range 64 {
		entries = append(entries, entry(i+1, strings.Repeat("x", 10_000)))
	}
	for _, parts := range stored(t, entries) {
		require.Len(t, parts, 1)
		assert.LessOrEqual(t, len(parts[0].Payload), PackBytes)
		part, err := Entries(parts[0].Payload)
		require.NoError(t, err)
		got = append(got, part...)
	}
	assert.Equal(t, entries, got)
}

func TestPartsAndTheirPositions(t *testing.T) {
	large := Entry{ID: ID{Ms: 5, Seq: 7}, Effects: strings.Repeat("0123456789", 350_000)} // 3.5 MB
	messages := stored(t, []Entry{entry(1, "e"), large, entry(6, "e")})
	require.Len(t, messages, 3)
	require.Len(t, messages[1], 4)
	got, err := Entries(whole(messages[1]))
	require.NoError(t, err)
	assert.Equal(t, []Entry{large}, got)
}

func TestPackRefuses(t *testing.T) {
	p := Packer{Origin: "a", Tail: Tail{Position: 1 << seqBits}}
	for _, id := range []ID{{}, {Ms: 1}, {Ms: 2, Seq: 1 << seqBits}, {Ms: maxMs + 1}} {
		_, _, err := p.Pack([]Entry{{ID: id, Effects: "e"}})
		assert.Error(t, err, id)
	}
	_, _, err := p.Pack([]Entry{{ID: ID{Ms: 1, Seq: 1}, Effects: "e"}})
	assert.NoError(t, err)
}

func TestEffects(t *testing.T) {
	packed := string(appendString(appendString(appendString(appendString(appendArray(nil, 4), "D"), "l"), "0"), "key"))
	got, err := Effects(packed + packed)
	require.NoError(t, err)
	effect := Effect{[]string{"D", "l", "0", "key"}, packed}
	assert.Equal(t, []Effect{effect, effect}, got)
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
	payload, _ := Payload([]Entry{entry(1, "e"), entry(2, strings.Repeat("x", 300)), entry(3, strings.Repeat("y", 70_000))})
	f.Add(payload)
	f.Add([]byte("\x92\xa31-0\xa1e"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		entries, err := Entries(payload)
		if err != nil {
			return
		}
		again, _ := Payload(entries)
		got, err := Entries(again)
		require.NoError(t, err)
		for _, e := range entries {
			if e.Effects == "" { // is not packed
				continue
			}
			require.NotEmpty(t, got)
			require.Equal(t, e, got[0])
			got = got[1:]
		}
		require.Empty(t, got)
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
			again = appendArray(again, len(effect.Values))
			for _, value := range effect.Values {
				again = appendString(again, value)
			}
		}
		got, err := Effects(string(again))
		require.NoError(t, err)
		require.Len(t, got, len(effects))
		for i := range got {
			require.Equal(t, effects[i].Values, got[i].Values)
		}
	})
}

// Whatever the entries, messages hold all of them, in order, and their positions rise.
func TestPackOfRandomEntries(t *testing.T) {
	seed, rounds := uint64(1), 50
	if text := os.Getenv("AVIARY_TEST_STEPS"); text != "" { // a long run, with a seed of its own
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		seed, rounds = rand.Uint64(), n
	}
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range rounds {
		var entries, filled, got []Entry
		tx, ms := "", 1
		for range r.IntN(2000) {
			ms += 1 + r.IntN(3)
			e := entry(ms, strings.Repeat("e", 1+r.IntN(3000)))
			switch {
			case tx == "" && r.IntN(10) == 0:
				tx = strconv.Itoa(ms)
				e.Transaction = tx
			case tx != "" && r.IntN(20) == 0:
				e.Transaction, e.Effects, tx = tx, "", ""
			case tx != "":
				e.Transaction = tx
			}
			entries = append(entries, e)
		}
		entries = append(entries, entry(ms+10, "end"))
		for _, e := range entries {
			if e.Effects != "" {
				filled = append(filled, Entry{ID: e.ID, Effects: e.Effects})
			}
		}
		for _, parts := range stored(t, entries) {
			part, err := Entries(whole(parts))
			require.NoError(t, err)
			got = append(got, part...)
		}
		require.Equal(t, filled, got)
	}
}
