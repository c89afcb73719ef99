package zones

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// What the lost zone had shipped, or another one holds, is missing. Only the rest is lost.
func TestOnlyWhatNoZoneHeldIsLost(t *testing.T) {
	w := &fixture{t: t, sonics: newSonicLedger()}
	for _, name := range []string{"a", "b", "c"} {
		z := &zone{name: name}
		if name != "a" {
			z.direct = stack.PrivateRedis(t).Client(t)
			require.NoError(t, z.direct.Set(t.Context(), "once:b", "x", 0).Err())
		}
		w.zones = append(w.zones, z)
	}
	lost, rest := w.zones[first], w.zones[second:]
	for i := range 100 {
		w.sonics.note(lost, "once:shipped-"+strconv.Itoa(i), 5, nil)
	}
	shipped := w.sonics.acknowledgedBy(lost)
	w.sonics.note(lost, "once:held", 0, nil)
	w.sonics.note(lost, "once:lost", 5, nil)
	w.sonics.note(rest[0], "once:b", 0, nil)
	require.NoError(t, rest[1].direct.Set(t.Context(), "once:held", "x", 0).Err())
	w.sonics.zoneIsLost(w, lost, shipped, rest)

	lines := w.countSonic(rest)
	assert.Equal(t, []int{102, 101}, []int{lines[0].missing, lines[1].missing}, "with one for the counters")
	assert.Equal(t, []int{1, 1}, []int{lines[0].lost, lines[1].lost})
	assert.EqualValues(t, 5, w.sonics.mayLack)
}

// What the next zone stores, and does not deliver, is missing.
func TestEventsThatTheNextZoneStores(t *testing.T) {
	e := newEvents(t)
	stored := map[string]bool{}
	for i := range 100 {
		id := strconv.Itoa(i)
		e.of(id).accepted = true
		stored[id] = i < 90
	}
	e.of("0").delivered = 1
	assert.Equal(t, 89, e.zoneIsLost(stored))
	n := e.count()
	assert.Equal(t, []int{89, 10}, []int{n.missing, n.lost})
}

func TestEventsThatComeTooOften(t *testing.T) {
	e := newEvents(t)
	deliver := func(times int) {
		for i := range 10 {
			of := e.of(strconv.Itoa(i))
			of.accepted = true
			of.delivered += times
		}
	}
	deliver(1)
	assert.Zero(t, e.count().tooOften)
	e.restarted() // these were counted before
	deliver(1)
	assert.Equal(t, 10, e.count().tooOften)
	e.zoneIsLost(nil)
	deliver(1)
	assert.Zero(t, e.count().tooOften)
	deliver(1)
	assert.Equal(t, 10, e.count().tooOften)
}

func TestOrdersThatComeTooOften(t *testing.T) {
	o := &orders{acknowledged: map[string]bool{"0": true, "1": true}, mayRepeat: map[string]bool{"1": true}}
	stored := map[string]int{"0": 1, "1": 2}
	assert.Zero(t, o.count(&zone{}, stored, true).tooOften)
	assert.Equal(t, 1, o.count(&zone{}, stored, false).tooOften, "the zone of Pigeonhole has each record once")
	stored["0"] = 2
	assert.Equal(t, 1, o.count(&zone{}, stored, true).tooOften)
}

func TestWrongLines(t *testing.T) {
	right := line{flow: sonicFlow, acknowledged: 5, inStep: 1, received: 5}
	assert.False(t, right.wrong())
	for _, change := range []func(n *line){
		func(n *line) { n.inStep = 0 },
		func(n *line) { n.missing = 1 },
		func(n *line) { n.differences = 1 },
		func(n *line) { n.tooOften = 1 },
		func(n *line) { n.doubled = 1 },
	} {
		n := right
		change(&n)
		assert.True(t, n.wrong(), "%+v", n)
	}
}
