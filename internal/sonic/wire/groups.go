package wire

import "strconv"

// Group is the effects of one slot in a message of a zone that has a Redis Cluster. Each slot has a
// stream of effects of its own, and a chain: Prev is the last effect of the group before, Last that of
// this one.
type Group struct {
	Slot       int
	Prev, Last ID
	Entries    []Entry
}

// GroupsPayload packs groups as a MessagePack array: slot, prev, last and entries of each. It leaves
// out entries without effects. It also returns how many entries have effects.
func GroupsPayload(groups []Group) (payload []byte, effects int64) {
	size := 5
	for i := range groups {
		size += groupOverhead
		for j := range groups[i].Entries {
			size += groups[i].Entries[j].Size()
		}
	}
	payload = appendArray(make([]byte, 0, size), 4*len(groups))
	for i := range groups {
		g := &groups[i]
		entries, n := Payload(g.Entries)
		effects += n
		payload = appendString(payload, strconv.Itoa(g.Slot))
		payload = appendString(payload, g.Prev.String())
		payload = appendString(payload, g.Last.String())
		payload = appendString(payload, entries)
	}
	return payload, effects
}

// groupOverhead is how many bytes a group takes at most besides its entries.
const groupOverhead = 100

// PackedGroup is a group as it is in a payload: Entries is a payload of [Payload].
type PackedGroup struct {
	Slot       int
	Prev, Last ID
	Entries    []byte
}

// Groups reads a payload of [GroupsPayload].
func Groups(payload []byte) ([]PackedGroup, error) {
	r := reader{rest: payload}
	n := r.array()
	if n%4 != 0 {
		r.fail("a group of fewer than four values")
	}
	groups := make([]PackedGroup, 0, n/4)
	for range n / 4 {
		slot, err := strconv.Atoi(string(r.text()))
		if err != nil {
			r.fail("a slot: %w", err)
		}
		groups = append(groups, PackedGroup{Slot: slot, Prev: r.id(), Last: r.id(), Entries: r.text()})
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return groups, nil
}
