package eventpattern

import (
	"encoding/binary"
	"maps"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// pieceSet finds wildcards by a piece of text that a value must contain: four bytes between two
// stars, or fewer if the wildcard has no four.
type pieceSet struct {
	postings map[piece]piecePostings
	lengths  [pieceBytes + 1]bool // the lengths of the pieces
	// filter has a bit for the hash of each piece. Most positions in most values need only this
	// check.
	filter [filterWords]uint64
}

// piece has the bytes of a piece in its lower half, and their number in its upper half.
type piece uint64

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

func newPieceSet() *pieceSet { return &pieceSet{postings: map[piece]piecePostings{}} }

func (t *pieceSet) clone() *pieceSet {
	if t == nil {
		return nil
	}
	c := *t
	c.postings = maps.Clone(t.postings)
	return &c
}

// pieceAt returns the piece of the first n bytes.
func pieceAt(text []byte, n int) piece {
	var b [pieceBytes]byte
	copy(b[:], text[:n])
	return fullPiece(b[:]) - pieceBytes<<32 + piece(n)<<32
}

// fullPiece returns the piece of the first four bytes.
func fullPiece(text []byte) piece { return pieceBytes<<32 | piece(binary.LittleEndian.Uint32(text)) }

func (p piece) length() int { return int(p >> 32) }

func (p piece) filterBit() uint64 { return uint64(p) * 0x9e3779b97f4a7c15 >> (64 - filterBits) }

// rarest returns the piece of a wildcard that has the fewest postings; of those the longest one. It
// reports false for a wildcard that is only a star.
func (t *pieceSet) rarest(w *wildcard.Wildcard) (best piece, postings int, ok bool) {
	for _, part := range append([][]byte{w.Prefix, w.Suffix}, w.Middle...) {
		length := min(len(part), pieceBytes)
		for i := 0; length > 0 && i+length <= len(part); i++ {
			p, n := pieceAt(part[i:], length), 0
			if t != nil {
				n = len(t.postings[p].list)
			}
			if !ok || n < postings || n == postings && length > best.length() {
				best, postings, ok = p, n, true
			}
		}
	}
	return best, postings, ok
}

func (t *pieceSet) add(of piece, p posting) {
	l, ok := t.postings[of]
	if !ok {
		l.number = uint32(len(t.postings))
	}
	l.list = append(l.list, p)
	t.postings[of] = l
	t.lengths[of.length()] = true
	b := of.filterBit()
	t.filter[b/64] |= 1 << (b % 64)
}

// find appends the postings of each piece that the text contains, once for each piece.
func (t *pieceSet) find(s *Scratch, text []byte, found []posting) []posting {
	s.beginPieces(len(t.postings))
	for n, used := range t.lengths {
		for i := 0; used && i+n <= len(text); i++ {
			var p piece
			if n == pieceBytes {
				p = fullPiece(text[i:])
			} else {
				p = pieceAt(text[i:], n)
			}
			b := p.filterBit()
			if t.filter[b/64]&(1<<(b%64)) == 0 {
				continue
			}
			if l, ok := t.postings[p]; ok && s.pieceMarks[l.number] != s.pieceMark {
				s.pieceMarks[l.number] = s.pieceMark
				found = append(found, l.list...)
			}
		}
	}
	return found
}
