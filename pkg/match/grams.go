package match

import (
	"encoding/binary"
	"maps"
)

// gramSet finds wildcards by a piece of text that a value must contain: four bytes, or one or two where a wildcard has no longer piece.
type gramSet struct {
	owner *edit
	posts map[uint64][]post
	// filter has a bit for each piece of four bytes, by its hash: most places of most values need no other look.
	filter *[filterWords]uint64
	sizes  [5]int // pieces of each size
}

const (
	gramBytes   = 4
	filterBits  = 15
	filterWords = 1 << filterBits / 64
)

func (t *gramSet) edited(e *edit) *gramSet {
	if t == nil {
		return &gramSet{owner: e, posts: map[uint64][]post{}, filter: new([filterWords]uint64)}
	}
	if t.owner == e {
		return t
	}
	filter := *t.filter
	return &gramSet{owner: e, posts: maps.Clone(t.posts), filter: &filter, sizes: t.sizes}
}

// gram is a piece with its size above it.
func gram(piece []byte) uint64 {
	g := uint64(len(piece)) << 32
	for i, c := range piece {
		g |= uint64(c) << (8 * i)
	}
	return g
}

func filterBit(four uint32) uint32 { return four * 0x9e3779b1 >> (32 - filterBits) }

// pieces calls f for the pieces of a wildcard that may stand for it: those of the greatest size that it has.
func (w *wildcard) pieces(f func(g uint64)) {
	size := 0
	parts := append([][]byte{w.prefix, w.suffix}, w.middle...)
	for _, part := range parts {
		for _, s := range []int{1, 2, gramBytes} {
			if len(part) >= s {
				size = max(size, s)
			}
		}
	}
	for _, part := range parts {
		for i := 0; size > 0 && i+size <= len(part); i++ {
			f(gram(part[i : i+size]))
		}
	}
}

func (t *gramSet) add(g uint64, p post) {
	if len(t.posts[g]) == 0 {
		t.sizes[g>>32]++
	}
	t.posts[g] = append(t.posts[g], p)
	if g>>32 == gramBytes {
		b := filterBit(uint32(g))
		t.filter[b/64] |= 1 << (b % 64)
	}
}

func (t *gramSet) remove(g uint64, p post) {
	list := withoutPost(t.posts[g], p)
	if t.posts[g] = list; len(list) == 0 {
		delete(t.posts, g)
		t.sizes[g>>32]--
	}
}

func (t *gramSet) find(text []byte, hits []post) []post {
	if t.sizes[gramBytes] > 0 {
		for i := 0; i+gramBytes <= len(text); i++ {
			four := binary.LittleEndian.Uint32(text[i:])
			b := filterBit(four)
			if t.filter[b/64]&(1<<(b%64)) != 0 {
				hits = append(hits, t.posts[gramBytes<<32|uint64(four)]...)
			}
		}
	}
	for size := 1; size <= 2; size++ {
		for i := 0; t.sizes[size] > 0 && i+size <= len(text); i++ {
			hits = append(hits, t.posts[gram(text[i:i+size])]...)
		}
	}
	return hits
}
