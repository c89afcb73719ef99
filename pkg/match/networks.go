package match

import (
	"maps"
	"slices"
)

// networkSet finds the networks that hold an address: one look for each length that some network has.
type networkSet struct {
	owner   *edit
	posts   map[network][]post
	counts  map[uint8]int // networks of each length
	lengths []uint8
}

func (t *networkSet) edited(e *edit) *networkSet {
	if t == nil {
		return &networkSet{owner: e, posts: map[network][]post{}, counts: map[uint8]int{}}
	}
	if t.owner == e {
		return t
	}
	return &networkSet{owner: e, posts: maps.Clone(t.posts), counts: maps.Clone(t.counts), lengths: t.lengths}
}

func (t *networkSet) add(n network, p post) {
	if t.counts[n.bits]++; t.counts[n.bits] == 1 {
		t.lengths = slices.Sorted(maps.Keys(t.counts))
	}
	t.posts[n] = append(t.posts[n], p)
}

func (t *networkSet) remove(n network, p post) {
	list := withoutPost(t.posts[n], p)
	if t.posts[n] = list; len(list) == 0 {
		delete(t.posts, n)
	}
	if t.counts[n.bits]--; t.counts[n.bits] == 0 {
		delete(t.counts, n.bits)
		t.lengths = slices.Sorted(maps.Keys(t.counts))
	}
}

func (t *networkSet) find(text []byte, hits []post) []post {
	addr, ok := parseAddress(text)
	if !ok {
		return hits
	}
	mapped := isMapped(addr)
	for _, bits := range t.lengths {
		if mapped && bits < mappedBits {
			continue
		}
		hits = append(hits, t.posts[network{maskAddress(addr, bits), bits}]...)
	}
	return hits
}
