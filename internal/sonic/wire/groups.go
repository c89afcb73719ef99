package wire

import (
	"fmt"
	"strconv"
)

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
	n, rest, err := readArray(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPayload, err)
	}
	if n%4 != 0 {
		return nil, fmt.Errorf("%w: a group of fewer than four values", ErrPayload)
	}
	groups := make([]PackedGroup, 0, n/4)
	for range n / 4 {
		var values [4][]byte
		for i := range values {
			if values[i], rest, err = readString(rest); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrPayload, err)
			}
		}
		g := PackedGroup{Entries: values[3]}
		if g.Slot, err = strconv.Atoi(string(values[0])); err == nil {
			g.Prev, err = ParseID(string(values[1]))
		}
		if err == nil {
			g.Last, err = ParseID(string(values[2]))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		groups = append(groups, g)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last group", ErrPayload, len(rest))
	}
	return groups, nil
}
