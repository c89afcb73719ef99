package eventpattern

import "github.com/aviaryhq/aviary/pkg/jsontext"

// Scratch is reusable memory for matching. One call at a time may use it, with any index. The zero
// value is ready to use.
type Scratch struct {
	src    []byte
	json   jsontext.Scanner
	snap   *snapshot
	values []value
	buf    []byte // decoded texts of strings with escapes, and keys of numbers
	key    []byte // the key of an address
	folded []byte
	found  []posting

	touched []int32  // nodes that have values
	heads   []head   // by node
	serial  uint64   // number of the present object
	seen    []uint64 // by node: serial of the last object that had its key
	grouped bool     // an array with several elements leads to further nodes: fields must match in the same element

	round       uint32 // number of this match, for marks by rule and clause
	ruleMarks   []uint32
	clauseMarks []uint32
	excluded    []uint32 // by condition of an exclusionSet: how many of the values it excludes
	pieceMark   uint32   // number of the present search for pieces
	pieceMarks  []uint32
	matched     []uint32
	left        int // steps left until TooMuchWork; negative: TooMuchWork

	fault EventError
}

// value is a value of the event at a node: an object with child nodes, or a string, number or
// literal. Elements of an array are separate values with the same parent, the object that contains
// the array.
type value struct {
	node  int32
	kind  kind
	inBuf bool  // the data is in Scratch.buf, not in the event
	first int32 // first child value of an object, or noValue
	next  int32 // next value with the same parent
	same  int32 // next value of the same node
	from  uint32
	to    uint32
}

const noValue = -1

// head is the first value of a node. It is valid only in its round.
type head struct {
	round uint32
	first int32
}

func (s *Scratch) data(v int32) []byte {
	x := &s.values[v]
	if x.inBuf {
		return s.buf[x.from:x.to]
	}
	return s.src[x.from:x.to]
}

// head returns the first value of a node, or noValue.
func (s *Scratch) head(node int32) int32 {
	if h := s.heads[node]; h.round == s.round {
		return h.first
	}
	return noValue
}

// prepare allocates memory for a snapshot and begins a round.
func (s *Scratch) prepare(snap *snapshot, event []byte) {
	s.snap, s.src = snap, event
	if n := len(snap.nodes); n > len(s.heads) {
		s.heads, s.seen = make([]head, n+n/4), make([]uint64, n+n/4)
	}
	if n := max(len(snap.clauses), int(snap.rules)); n > len(s.clauseMarks) {
		s.ruleMarks, s.clauseMarks = make([]uint32, n+n/4), make([]uint32, n+n/4)
	}
	if s.round++; s.round == 0 {
		clear(s.heads)
		clear(s.ruleMarks)
		clear(s.clauseMarks)
		s.round = 1
	}
	s.grouped, s.left = false, MaxEventWork
	s.values, s.buf, s.touched, s.matched = s.values[:0], s.buf[:0], s.touched[:0], s.matched[:0]
}

// beginPieces begins a search for n different pieces.
func (s *Scratch) beginPieces(n int) {
	if n > len(s.pieceMarks) {
		s.pieceMarks = make([]uint32, n+n/4)
	}
	if s.pieceMark++; s.pieceMark == 0 {
		clear(s.pieceMarks)
		s.pieceMark = 1
	}
}

// run matches an event. It leaves the numbers of the matching rules in s.matched.
func (s *Scratch) run(snap *snapshot, event []byte) error {
	s.prepare(snap, event)
	if !s.scan() {
		fault := s.fault
		return &fault
	}
	if s.lookUp(snap); s.left < 0 {
		return &EventError{Reason: TooMuchWork}
	}
	return nil
}

// lookUp finds the postings of all values of the event, and checks them.
func (s *Scratch) lookUp(snap *snapshot) {
	for _, id := range s.touched {
		l := snap.nodes[id].lookup
		if l == nil {
			continue
		}
		first := s.heads[id].first
		once := s.values[first].same == noValue
		for v := first; v >= 0 && s.left >= 0; v = s.values[v].same {
			s.found = l.find(s, s.values[v].kind, s.data(v), s.found[:0])
			s.left--
			s.check(s.found, once)
		}
		if l.exclusions != nil {
			l.exclusions.find(s, first)
		}
		s.check(l.any, false)
	}
	s.check(snap.always, false)
}

// check adds to s.matched the rules of the postings that match. It stops when no steps are left. once
// says that these are the postings of the only value of a path: then sole postings need no marks.
func (s *Scratch) check(postings []posting, once bool) {
	for _, p := range postings {
		if s.left--; s.left < 0 {
			return
		}
		number := p.number()
		sole := once && p&postingSole != 0
		if p&postingSure == 0 {
			if !sole {
				if s.clauseMarks[number] == s.round {
					continue
				}
				s.clauseMarks[number] = s.round
			}
			c := &s.snap.clauses[number]
			number = c.rule
			if !sole && s.ruleMarks[number] == s.round || !s.clauseMatches(c) {
				continue
			}
		}
		if !sole {
			if s.ruleMarks[number] == s.round {
				continue
			}
			s.ruleMarks[number] = s.round
		}
		s.matched = append(s.matched, number)
	}
}
