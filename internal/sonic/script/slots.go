package script

import (
	"strconv"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
)

// slotTags returns a hash tag for each slot: the least number n for which "sonic:n" is in the slot.
var slotTags = sync.OnceValue(func() *[cluster.Slots]int { //nolint:gochecknoglobals // a constant that is computed when it is needed
	tags, left := new([cluster.Slots]int), cluster.Slots
	found := [cluster.Slots]bool{}
	for n := 0; left > 0; n++ {
		if slot := cluster.Slot([]byte("sonic:" + strconv.Itoa(n))); !found[slot] {
			tags[slot], found[slot] = n, true
			left--
		}
	}
	return tags
})

// SlotKeys returns the names of the state keys of a slot of a Redis Cluster, which is a shard of its
// own. All of them are in that slot.
func SlotKeys(slot int) Keys { return KeysOf(slotTags()[slot]) }

// SlotOutbox returns the name of the stream of effects of a slot, as SlotKeys does, at less cost.
func SlotOutbox(slot int) string { return "{sonic:" + strconv.Itoa(slotTags()[slot]) + "}out" }
