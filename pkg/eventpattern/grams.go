package eventpattern

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// gramSet finds wildcards by a piece of text that a value must contain. A piece has four bytes, or
// one or two if the wildcard has no longer piece.
type gramSet struct {
	owner *edit
	posts map[uint64]gramPosts
	free  []uint32 // numbers
	used  uint32   // all numbers are below this one, including free ones
	// filter has a bit for the hash of each piece of four bytes. Most positions in most values need
	// only this check.
	filter *[filterWords]uint64
	sizes  [5]int // number of pieces of each size
}

// gramPosts holds the posts of a piece. By its number a search recognizes a piece that it has
// already found: a value may contain a piece many times.
type gramPosts struct {
	number uint32
	posts  []post
}

const (
	gramBytes   = 4
	filterBits  = 15
	filterWords = 1 << filterBits / 64
)

func (t *gramSet) edited(e *edit) *gramSet {
	if t == nil {
		return &gramSet{owner: e, posts: map[uint64]gramPosts{}, filter: new([filterWords]uint64)}
	}
	if t.owner == e {
		return t
	}
	filter := *t.filter
	return &gramSet{owner: e, posts: maps.Clone(t.posts), free: slices.Clone(t.free), used: t.used, filter: &filter, sizes: t.sizes}
}

// gram returns the bytes of a piece as a number, with its size in the upper half.
func gram(piece []byte) uint64 {
	g := uint64(len(piece)) << 32
	for i, c := range piece {
		g |= uint64(c) << (8 * i)
	}
	return g
}

func filterBit(four uint32) uint32 { return four * 0x9e3779b1 >> (32 - filterBits) }

// pieces calls f for each piece by which the wildcard may be found: those of the greatest possible
// size.
func pieces(w *wildcard.Wildcard, f func(g uint64)) {
	size := 0
	parts := append([][]byte{w.Prefix, w.Suffix}, w.Middle...)
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
	l, ok := t.posts[g]
	if !ok {
		t.sizes[g>>32]++
		l.number = t.newNumber()
	}
	l.posts = append(l.posts, p)
	t.posts[g] = l
	if g>>32 == gramBytes {
		b := filterBit(uint32(g))
		t.filter[b/64] |= 1 << (b % 64)
	}
}

func (t *gramSet) newNumber() uint32 {
	if last := len(t.free) - 1; last >= 0 {
		number := t.free[last]
		t.free = t.free[:last]
		return number
	}
	t.used++
	return t.used - 1
}

func (t *gramSet) remove(g uint64, p post) {
	l := t.posts[g]
	if l.posts = withoutPost(l.posts, p); len(l.posts) > 0 {
		t.posts[g] = l
		return
	}
	delete(t.posts, g)
	t.free = append(t.free, l.number)
	t.sizes[g>>32]--
}

// find appends the posts of each piece that the text contains, once for each piece.
func (t *gramSet) find(s *Scratch, text []byte, hits []post) []post {
	s.markGrams(t.used)
	if t.sizes[gramBytes] > 0 {
		for i := 0; i+gramBytes <= len(text); i++ {
			four := binary.LittleEndian.Uint32(text[i:])
			b := filterBit(four)
			if t.filter[b/64]&(1<<(b%64)) != 0 {
				hits = t.take(s, gramBytes<<32|uint64(four), hits)
			}
		}
	}
	for size := 1; size <= 2; size++ {
		for i := 0; t.sizes[size] > 0 && i+size <= len(text); i++ {
			hits = t.take(s, gram(text[i:i+size]), hits)
		}
	}
	return hits
}

func (t *gramSet) take(s *Scratch, g uint64, hits []post) []post {
	l, ok := t.posts[g]
	if !ok || s.gramMarks[l.number] == s.gramMark {
		return hits
	}
	s.gramMarks[l.number] = s.gramMark
	return append(hits, l.posts...)
}
