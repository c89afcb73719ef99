package message_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

func TestIDsReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"0-1", "1700000000000-0", "18446744073709551615-18446744073709551615"} {
		id, err := message.ParseID(text)
		require.NoError(t, err)
		assert.Equal(t, text, id.String())
	}
	id, err := message.ParseID("")
	require.NoError(t, err)
	assert.True(t, id.IsZero())
	for _, text := range []string{"1", "-", "1-", "-1", "1-2-3", "a-1", "1- 2", "18446744073709551616-0", "+1-1"} {
		_, err := message.ParseID(text)
		assert.Error(t, err, text)
	}
}

func TestPositionsAreInTheOrderOfIDs(t *testing.T) {
	const ms = 1_800_000_000_000
	previous := int64(-1)
	for _, id := range []message.ID{{}, {Ms: 1}, {Ms: ms}, {Ms: ms, Seq: 1}, {Ms: ms, Seq: 1<<20 - 1}, {Ms: ms + 1}, {Ms: 1<<43 - 1, Seq: 1<<20 - 1}} {
		p, err := id.Position()
		require.NoError(t, err)
		assert.Greater(t, p, previous, id)
		assert.Equal(t, id, message.AtPosition(p))
		previous = p
	}
	assert.True(t, message.AtPosition(-1).IsZero())
	for _, id := range []message.ID{{Ms: ms, Seq: 1 << 20}, {Ms: 1 << 43}} {
		_, err := id.Position()
		assert.Error(t, err)
	}
}

func TestOrderOfIDsIsThatOfNumbers(t *testing.T) {
	for range 1000 {
		a := message.ID{Ms: rand.Uint64N(3), Seq: rand.Uint64N(3)}
		b := message.ID{Ms: rand.Uint64N(3), Seq: rand.Uint64N(3)}
		want := 0
		switch x, y := a.Ms*10+a.Seq, b.Ms*10+b.Seq; {
		case x < y:
			want = -1
		case x > y:
			want = 1
		}
		require.Equal(t, want, a.Compare(b))
		require.Equal(t, -want, b.Compare(a))
		require.GreaterOrEqual(t, message.Max(a, b).Compare(a), 0)
	}
}

func header() *message.Header {
	return &message.Header{
		Origin: "a", Epoch: 3, Prev: message.ID{Ms: 1}, First: message.ID{Ms: 1, Seq: 1}, Last: message.ID{Ms: 2},
		Count: 7, Position: 2 << 20, Part: 1, Parts: 1,
	}
}

func TestHeadersReadAsTheyAreWritten(t *testing.T) {
	whole, part := header(), header()
	part.Part, part.Parts = 2, 5
	for _, h := range []*message.Header{whole, part} {
		got, err := message.ParseHeader(h.Properties())
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
		"none":            {func(p map[string]string) { clear(p) }, message.ErrForeign},
		"no format":       {func(p map[string]string) { delete(p, "sonic_format") }, message.ErrForeign},
		"no origin":       {func(p map[string]string) { delete(p, "sonic_origin") }, message.ErrForeign},
		"no last":         {func(p map[string]string) { p["sonic_last"] = "x" }, message.ErrForeign},
		"format":          {func(p map[string]string) { p["sonic_format"] = "x" }, message.ErrUnreadable},
		"prev behind":     {func(p map[string]string) { p["sonic_prev"] = "9-0" }, message.ErrUnreadable},
		"first behind":    {func(p map[string]string) { p["sonic_first"] = "2-1" }, message.ErrUnreadable},
		"part of none":    {func(p map[string]string) { p["sonic_part"] = "2/1" }, message.ErrUnreadable},
		"part 0":          {func(p map[string]string) { p["sonic_part"] = "0/1" }, message.ErrUnreadable},
		"negative":        {func(p map[string]string) { p["sonic_epoch"] = "-1" }, message.ErrUnreadable},
		"no position":     {func(p map[string]string) { delete(p, "sonic_position") }, message.ErrUnreadable},
		"garbage in id":   {func(p map[string]string) { p["sonic_first"] = "1" }, message.ErrUnreadable},
		"newer":           {func(p map[string]string) { p["sonic_format"] = strconv.Itoa(message.Format + 1) }, message.ErrNewer},
		"newer and other": {func(p map[string]string) { clear(p); p["sonic_format"] = "99" }, message.ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			p := maps.Clone(good)
			c.change(p)
			h, err := message.ParseHeader(p)
			assert.ErrorIs(t, err, c.want)
			if p["sonic_last"] != "" && !errors.Is(c.want, message.ErrForeign) {
				assert.Equal(t, message.ID{Ms: 2}, h.Last)
			}
		})
	}
	newer := maps.Clone(good)
	newer["sonic_format"] = strconv.Itoa(message.Format + 1)
	_, err := message.ParseHeader(newer)
	require.ErrorIs(t, err, message.ErrNewer)
	assert.Contains(t, err.Error(), "run the newer version")
	older := maps.Clone(good)
	older["sonic_format"] = "3"
	_, err = message.ParseHeader(older)
	require.ErrorIs(t, err, message.ErrUnreadable)
	assert.ErrorContains(t, err, "it is in format 3, and this one reads format 5")
}
