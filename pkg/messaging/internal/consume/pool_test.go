package consume

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// Objects that wait for reuse keep nothing else in memory, and their number is bounded.
func TestTaskPoolKeepsNoMessages(t *testing.T) {
	var p taskPool
	var ended []*schedule.Item
	for i := range 2 * maxPooled {
		d := &task{Delivery: &record.Delivery{Payload: make([]byte, 10)}, entry: new(entry), reusable: i%4 != 0}
		d.Owner, d.Group = d, new(schedule.Group)
		ended = append(ended, &d.Item)
	}
	p.give(ended)
	require.Len(t, p.free, maxPooled)
	spare := spareTasks{pool: &p}
	for range maxPooled + 10 {
		d := spare.next()
		require.Nil(t, d.Delivery)
		require.Nil(t, d.entry)
		require.Nil(t, d.Group)
		require.False(t, d.reusable)
	}
	require.Empty(t, p.free)
}
