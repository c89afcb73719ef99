package messaging

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A last entry that brings no message counts as read only when the partition delivered nothing all
// along, and had the same end.
func TestReaderGoalWhoseLastEntryBringsNoMessage(t *testing.T) {
	end := newMessageID(entryPlaceOf(1, 5), 0, 0, 1)
	further := newMessageID(entryPlaceOf(1, 6), 0, 0, 1)
	unshown := map[int]readerEnd{0: {id: end, unshown: true}}
	for name, disturb := range map[string]func(*readerGoal) map[int]MessageID{
		"nothing": nil,
		"a message": func(g *readerGoal) map[int]MessageID {
			g.note(newMessageID(entryPlaceOf(1, 4), 0, 0, 1))
			return g.lower(unshown, nil)
		},
		"messages stand before it": func(g *readerGoal) map[int]MessageID {
			return g.lower(map[int]readerEnd{0: {id: end}}, nil)
		},
		"another end by now": func(g *readerGoal) map[int]MessageID {
			return g.lower(map[int]readerEnd{0: {id: further, unshown: true}}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newReaderGoal(map[int]readerEnd{0: {id: end}}, time.Second)
			for range sameEnds {
				require.Empty(t, g.lower(unshown, nil))
			}
			require.True(t, g.doubtful(0))
			if disturb != nil {
				require.Empty(t, disturb(g))
				require.False(t, g.reached())
				return
			}
			require.Equal(t, map[int]MessageID{0: end}, g.lower(unshown, nil))
			require.True(t, g.reached())
		})
	}
}
