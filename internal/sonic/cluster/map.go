package cluster

import (
	"cmp"
	"slices"
)

// Primary is a primary of a Redis Cluster.
type Primary struct {
	// ID is its node id, which it keeps when its address changes.
	ID string
	// Address is host:port.
	Address string
}

// Range is a range of slots, both ends included, and the primary that has it.
type Range struct {
	First, Last int
	Primary     Primary
}

// Map says which primary has each slot. It does not change.
type Map struct {
	primaries []Primary
	owners    [Slots]int16 // index in primaries, -1 for none
}

// NewMap returns the map of the ranges. Primaries with one address are one: a node that has forgotten
// its id comes back with another, and the others name both for a while.
func NewMap(ranges []Range) *Map {
	m := &Map{}
	for i := range m.owners {
		m.owners[i] = -1
	}
	for _, r := range ranges {
		if indexOf(m.primaries, r.Primary.Address) < 0 {
			m.primaries = append(m.primaries, r.Primary)
		}
	}
	slices.SortFunc(m.primaries, func(a, b Primary) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range ranges {
		owner := indexOf(m.primaries, r.Primary.Address)
		for slot := max(r.First, 0); slot <= min(r.Last, Slots-1); slot++ {
			m.owners[slot] = int16(owner)
		}
	}
	return m
}

func indexOf(primaries []Primary, address string) int {
	return slices.IndexFunc(primaries, func(p Primary) bool { return p.Address == address })
}

// Primaries returns the primaries that have slots, in order of their ids. Callers must not change
// them.
func (m *Map) Primaries() []Primary { return m.primaries }

// Addresses returns the addresses of the primaries that have slots.
func (m *Map) Addresses() (addresses []string) {
	for _, p := range m.primaries {
		addresses = append(addresses, p.Address)
	}
	return addresses
}

// Owner returns the address of the primary that has a slot, or "" if none has it.
func (m *Map) Owner(slot int) string {
	if owner := m.owners[slot]; owner >= 0 {
		return m.primaries[owner].Address
	}
	return ""
}

// Count returns how many slots the primary at an address has.
func (m *Map) Count(address string) (n int) {
	for slot := range m.owners {
		if m.Owner(slot) == address {
			n++
		}
	}
	return n
}

// Equal reports whether both maps say the same.
func (m *Map) Equal(other *Map) bool {
	return slices.Equal(m.primaries, other.primaries) && m.owners == other.owners
}
