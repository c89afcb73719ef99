package read

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// A last entry that brings no message counts as read only when the partition delivered nothing all
// along, and had the same end.
func TestReaderGoalWhoseLastEntryBringsNoMessage(t *testing.T) {
	end := record.NewMessageID(record.EntryPlaceOf(1, 5), 0, 0, 1)
	further := record.NewMessageID(record.EntryPlaceOf(1, 6), 0, 0, 1)
	unshown := map[int]partitionEnd{0: {id: end, unshown: true}}
	for name, disturb := range map[string]func(*goal) map[int]record.MessageID{
		"nothing": nil,
		"a message": func(g *goal) map[int]record.MessageID {
			g.note(record.NewMessageID(record.EntryPlaceOf(1, 4), 0, 0, 1))
			return g.lower(unshown, nil)
		},
		"messages stand before it": func(g *goal) map[int]record.MessageID {
			return g.lower(map[int]partitionEnd{0: {id: end}}, nil)
		},
		"another end by now": func(g *goal) map[int]record.MessageID {
			return g.lower(map[int]partitionEnd{0: {id: further, unshown: true}}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGoal(map[int]partitionEnd{0: {id: end}}, time.Second)
			for range sameEnds {
				require.Empty(t, g.lower(unshown, nil))
			}
			require.True(t, g.doubtful(0))
			if disturb != nil {
				require.Empty(t, disturb(g))
				require.False(t, g.reached())
				return
			}
			require.Equal(t, map[int]record.MessageID{0: end}, g.lower(unshown, nil))
			require.True(t, g.reached())
		})
	}
}
