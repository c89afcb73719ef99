package eventpattern

import (
	"encoding/binary"
	"maps"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// pieceSet finds wildcards by a piece of text that a value must contain: four bytes of it.
type pieceSet struct {
	postings map[uint32]piecePostings
	// filter has a bit for the hash of each piece. Most positions in most values need only this
	// check.
	filter [filterWords]uint64
}

// piecePostings holds the postings of a piece. By its number a search recognizes a piece that it
// has already found: a value may contain a piece many times.
type piecePostings struct {
	number uint32
	list   []posting
}

const (
	pieceBytes  = 4
	filterBits  = 15
	filterWords = 1 << filterBits / 64
)

func newPieceSet() *pieceSet { return &pieceSet{postings: map[uint32]piecePostings{}} }

func (t *pieceSet) clone() *pieceSet {
	if t == nil {
		return nil
	}
	return &pieceSet{maps.Clone(t.postings), t.filter}
}

func filterBit(piece uint32) uint32 { return piece * 0x9e3779b1 >> (32 - filterBits) }

// rarest returns the piece of a wildcard that has the fewest postings. It reports false for a
// wildcard without four bytes between two stars.
func (t *pieceSet) rarest(w *wildcard.Wildcard) (piece uint32, postings int, ok bool) {
	for _, part := range append([][]byte{w.Prefix, w.Suffix}, w.Middle...) {
		for i := 0; i+pieceBytes <= len(part); i++ {
			p, n := binary.LittleEndian.Uint32(part[i:]), 0
			if t != nil {
				n = len(t.postings[p].list)
			}
			if !ok || n < postings {
				piece, postings, ok = p, n, true
			}
		}
	}
	return piece, postings, ok
}

func (t *pieceSet) add(piece uint32, p posting) {
	l, ok := t.postings[piece]
	if !ok {
		l.number = uint32(len(t.postings))
	}
	l.list = append(l.list, p)
	t.postings[piece] = l
	b := filterBit(piece)
	t.filter[b/64] |= 1 << (b % 64)
}

// find appends the postings of each piece that the text contains, once for each piece.
func (t *pieceSet) find(s *Scratch, text []byte, found []posting) []posting {
	s.beginPieces(len(t.postings))
	for i := 0; i+pieceBytes <= len(text); i++ {
		piece := binary.LittleEndian.Uint32(text[i:])
		b := filterBit(piece)
		if t.filter[b/64]&(1<<(b%64)) == 0 {
			continue
		}
		if l, ok := t.postings[piece]; ok && s.pieceMarks[l.number] != s.pieceMark {
			s.pieceMarks[l.number] = s.pieceMark
			found = append(found, l.list...)
		}
	}
	return found
}
