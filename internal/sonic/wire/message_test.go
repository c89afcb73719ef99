package wire_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func TestIDsReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"0-1", "1700000000000-0", "18446744073709551615-18446744073709551615"} {
		id, err := wire.ParseID(text)
		require.NoError(t, err)
		assert.Equal(t, text, id.String())
	}
	id, err := wire.ParseID("")
	require.NoError(t, err)
	assert.True(t, id.IsZero())
	for _, text := range []string{"1", "-", "1-", "-1", "1-2-3", "a-1", "1- 2", "18446744073709551616-0", "+1-1"} {
		_, err := wire.ParseID(text)
		assert.Error(t, err, text)
	}
}

func TestPositionsAreInTheOrderOfIDs(t *testing.T) {
	const ms = 1_800_000_000_000
	previous := int64(-1)
	for _, id := range []wire.ID{{}, {Ms: 1}, {Ms: ms}, {Ms: ms, Seq: 1}, {Ms: ms, Seq: 1<<20 - 1}, {Ms: ms + 1}, {Ms: 1<<43 - 1, Seq: 1<<20 - 1}} {
		p, err := id.Position()
		require.NoError(t, err)
		assert.Greater(t, p, previous, id)
		assert.Equal(t, id, wire.AtPosition(p))
		previous = p
	}
	assert.True(t, wire.AtPosition(-1).IsZero())
	for _, id := range []wire.ID{{Ms: ms, Seq: 1 << 20}, {Ms: 1 << 43}} {
		_, err := id.Position()
		assert.Error(t, err)
	}
}

func TestOrderOfIDsIsThatOfNumbers(t *testing.T) {
	for range 1000 {
		a := wire.ID{Ms: rand.Uint64N(3), Seq: rand.Uint64N(3)}
		b := wire.ID{Ms: rand.Uint64N(3), Seq: rand.Uint64N(3)}
		want := 0
		switch x, y := a.Ms*10+a.Seq, b.Ms*10+b.Seq; {
		case x < y:
			want = -1
		case x > y:
			want = 1
		}
		require.Equal(t, want, a.Compare(b))
		require.Equal(t, -want, b.Compare(a))
		require.GreaterOrEqual(t, wire.Max(a, b).Compare(a), 0)
	}
}

func header() *wire.Header {
	return &wire.Header{
		Origin: "a", Epoch: 3, Prev: wire.ID{Ms: 1}, First: wire.ID{Ms: 1, Seq: 1}, Last: wire.ID{Ms: 2},
		Count: 7, Position: 2 << 20, Part: 1, Parts: 1,
	}
}

func TestHeadersReadAsTheyAreWritten(t *testing.T) {
	whole, part := header(), header()
	part.Part, part.Parts = 2, 5
	for _, h := range []*wire.Header{whole, part} {
		got, err := wire.ParseHeader(h.Properties())
		require.NoError(t, err)
		assert.Equal(t, h, got)
	}
}

func TestHeadersThatCannotBeRead(t *testing.T) {
	good := header().Properties()
	for name, c := range map[string]struct {
		change func(map[string]string)
		want   error
	}{
		"none":            {func(p map[string]string) { clear(p) }, wire.ErrForeign},
		"no format":       {func(p map[string]string) { delete(p, "sonic_format") }, wire.ErrForeign},
		"no origin":       {func(p map[string]string) { delete(p, "sonic_origin") }, wire.ErrForeign},
		"no last":         {func(p map[string]string) { p["sonic_last"] = "x" }, wire.ErrForeign},
		"format":          {func(p map[string]string) { p["sonic_format"] = "x" }, wire.ErrUnreadable},
		"prev behind":     {func(p map[string]string) { p["sonic_prev"] = "9-0" }, wire.ErrUnreadable},
		"first behind":    {func(p map[string]string) { p["sonic_first"] = "2-1" }, wire.ErrUnreadable},
		"part of none":    {func(p map[string]string) { p["sonic_part"] = "2/1" }, wire.ErrUnreadable},
		"part 0":          {func(p map[string]string) { p["sonic_part"] = "0/1" }, wire.ErrUnreadable},
		"negative":        {func(p map[string]string) { p["sonic_epoch"] = "-1" }, wire.ErrUnreadable},
		"no position":     {func(p map[string]string) { delete(p, "sonic_position") }, wire.ErrUnreadable},
		"garbage in id":   {func(p map[string]string) { p["sonic_first"] = "1" }, wire.ErrUnreadable},
		"newer":           {func(p map[string]string) { p["sonic_format"] = strconv.Itoa(wire.Format + 1) }, wire.ErrNewer},
		"newer and other": {func(p map[string]string) { clear(p); p["sonic_format"] = "99" }, wire.ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			p := maps.Clone(good)
			c.change(p)
			h, err := wire.ParseHeader(p)
			assert.ErrorIs(t, err, c.want)
			if p["sonic_last"] != "" && !errors.Is(c.want, wire.ErrForeign) {
				assert.Equal(t, wire.ID{Ms: 2}, h.Last)
			}
		})
	}
	newer := maps.Clone(good)
	newer["sonic_format"] = strconv.Itoa(wire.Format + 1)
	_, err := wire.ParseHeader(newer)
	require.ErrorIs(t, err, wire.ErrNewer)
	assert.Contains(t, err.Error(), "run the newer version")
	older := maps.Clone(good)
	older["sonic_format"] = "3"
	_, err = wire.ParseHeader(older)
	require.ErrorIs(t, err, wire.ErrUnreadable)
	assert.ErrorContains(t, err, "it is in format 3, and this one reads format 5")
}
