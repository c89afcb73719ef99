package sonic

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// stillApplier is an applier of a zone that does nothing.
type stillApplier struct {
	reached      uint64
	otherReached map[string]uint64
}

func (a stillApplier) Reached() uint64                 { return a.reached }
func (a stillApplier) OtherReached() map[string]uint64 { return a.otherReached }

// TestHorizon: what counts is the zone that is furthest behind with another one, and zero while one
// is not known.
func TestHorizon(t *testing.T) {
	t.Parallel()
	const minute = 60_000
	b := func(reached, a, c uint64) stillApplier {
		return stillApplier{reached, map[string]uint64{"a": a, "c": c}}
	}
	c := func(reached, a, b uint64) stillApplier {
		return stillApplier{reached, map[string]uint64{"a": a, "b": b, "gone": 1}}
	}
	for name, row := range map[string]struct {
		others map[string]clusterApplier
		want   uint64
	}{
		"alone":                   {},
		"two zones":               {map[string]clusterApplier{"b": stillApplier{minute + 5, map[string]uint64{"a": minute + 7}}}, 5},
		"the other is behind":     {map[string]clusterApplier{"b": stillApplier{minute + 5, map[string]uint64{"a": minute + 2}}}, 2},
		"it has reported nothing": {map[string]clusterApplier{"b": stillApplier{minute + 5, nil}}, 0},
		"nothing has come":        {map[string]clusterApplier{"b": stillApplier{0, map[string]uint64{"a": minute + 2}}}, 0},
		"less than a minute":      {map[string]clusterApplier{"b": stillApplier{minute, map[string]uint64{"a": minute}}}, 0},
		"three zones":             {map[string]clusterApplier{"b": b(minute+9, minute+8, minute+7), "c": c(minute+9, minute+8, minute+6)}, 6},
		"c is behind with b":      {map[string]clusterApplier{"b": b(minute+9, minute+8, minute+7), "c": c(minute+9, minute+8, minute+1)}, 1},
		"b is behind with c":      {map[string]clusterApplier{"b": b(minute+9, minute+8, minute+1), "c": c(minute+9, minute+8, minute+7)}, 1},
		"this one with c":         {map[string]clusterApplier{"b": b(minute+9, minute+8, minute+7), "c": c(minute+1, minute+8, minute+7)}, 1},
		"b has not reported c":    {map[string]clusterApplier{"b": stillApplier{minute + 9, map[string]uint64{"a": minute + 9}}, "c": c(minute+9, minute+8, minute+7)}, 0},
	} {
		p := clusterProgress{"a", row.others}
		want := wire.ID{}
		if row.want > 0 {
			want.Ms = row.want
		}
		assert.Equal(t, want, p.horizon(), name)
	}
	assert.Equal(t, map[string]uint64{"b": 7, "c": 0}, clusterProgress{"a", map[string]clusterApplier{"b": b(7, 1, 1), "c": c(0, 1, 1)}}.reached())
}
