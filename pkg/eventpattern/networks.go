package eventpattern

import (
	"maps"
	"slices"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/network"
)

// networkSet finds the networks that contain an address. It does one map access for each length
// that any of its networks has.
type networkSet struct {
	owner   *edit
	posts   map[network.Network][]post
	counts  map[uint8]int // number of networks by length
	lengths []uint8
}

func (t *networkSet) edited(e *edit) *networkSet {
	if t == nil {
		return &networkSet{owner: e, posts: map[network.Network][]post{}, counts: map[uint8]int{}}
	}
	if t.owner == e {
		return t
	}
	return &networkSet{owner: e, posts: maps.Clone(t.posts), counts: maps.Clone(t.counts), lengths: t.lengths}
}

func (t *networkSet) add(n network.Network, p post) {
	if t.counts[n.Bits()]++; t.counts[n.Bits()] == 1 {
		t.lengths = slices.Sorted(maps.Keys(t.counts))
	}
	t.posts[n] = append(t.posts[n], p)
}

func (t *networkSet) remove(n network.Network, p post) {
	list := withoutPost(t.posts[n], p)
	if t.posts[n] = list; len(list) == 0 {
		delete(t.posts, n)
	}
	if t.counts[n.Bits()]--; t.counts[n.Bits()] == 0 {
		delete(t.counts, n.Bits())
		t.lengths = slices.Sorted(maps.Keys(t.counts))
	}
}

func (t *networkSet) find(text []byte, hits []post) []post {
	addr, ok := network.ParseAddress(text)
	if !ok {
		return hits
	}
	for _, bits := range t.lengths {
		if n, ok := network.Containing(addr, bits); ok {
			hits = append(hits, t.posts[n]...)
		}
	}
	return hits
}
