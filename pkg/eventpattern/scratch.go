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
	folded []byte
	hits   []post

	touched []int32  // nodes that have values
	heads   []head   // by node
	serial  uint64   // number of the present object
	seen    []uint64 // by node: serial of the last object that had its key
	grouped bool     // an array with several elements leads to further nodes: fields must match in the same element

	round     uint32 // number of this match, for marks by rule and join
	ruleMarks []uint32
	joinMarks []uint32
	mark      uint32 // for marks, see otherSet
	marks     []uint32
	gramMark  uint32 // number of the present search for pieces
	gramMarks []uint32
	matched   []uint32
	left      int // steps left until TooMuchWork; negative: TooMuchWork

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
	if n := len(snap.joins); n > len(s.joinMarks) {
		s.ruleMarks, s.joinMarks = make([]uint32, n+n/4), make([]uint32, n+n/4)
	}
	if s.round++; s.round == 0 {
		clear(s.heads)
		clear(s.ruleMarks)
		clear(s.joinMarks)
		s.round = 1
	}
	s.grouped, s.left = false, MaxEventWork
	s.values, s.buf, s.touched, s.matched = s.values[:0], s.buf[:0], s.touched[:0], s.matched[:0]
}

// markGrams begins a search for pieces whose numbers are below used.
func (s *Scratch) markGrams(used uint32) {
	if int(used) > len(s.gramMarks) {
		s.gramMarks = make([]uint32, used+used/4)
	}
	if s.gramMark++; s.gramMark == 0 {
		clear(s.gramMarks)
		s.gramMark = 1
	}
}

// A comparison counts as one step, and so does a post that a lookup has found. One step is also the
// folding of foldedPerStep bytes of a text, the search in searchedPerStep bytes, and the check of
// fieldsPerStep fields in an element of an array. Parsing an address counts as addressSteps steps.
const (
	foldedPerStep   = 2
	searchedPerStep = 4
	fieldsPerStep   = 2
	addressSteps    = 8
)

// run matches an event. It leaves the numbers of the matching rules in s.matched.
func (s *Scratch) run(snap *snapshot, event []byte) error {
	s.prepare(snap, event)
	if !s.scan() {
		fault := s.fault
		return &fault
	}
	if s.find(snap); s.left < 0 {
		return &EventError{Reason: TooMuchWork}
	}
	return nil
}

// find handles the posts of the event's values and those of missing values. It stops when no steps
// are left.
func (s *Scratch) find(snap *snapshot) {
	for _, id := range s.touched {
		l := snap.nodes[id].lookup
		if l == nil {
			continue
		}
		first := s.heads[id].first
		single := s.values[first].same == noValue
		for v := first; v >= 0; v = s.values[v].same {
			s.hits = l.find(s, s.values[v].kind, s.data(v), s.hits[:0])
			s.left -= 1 + len(s.hits)
			for _, p := range s.hits {
				if s.hit(p, single); s.left < 0 {
					return
				}
			}
		}
		if l.others != nil {
			l.others.meet(s, first)
		}
	}
	for _, id := range snap.absent {
		if s.head(id) == noValue {
			for _, p := range snap.nodes[id].lookup.absent {
				if s.hit(p, true); s.left < 0 {
					return
				}
			}
		}
	}
}

// hit handles a post, and adds the rule to s.matched if it matches. once says that the lookup of
// the post is used only once for this event.
func (s *Scratch) hit(p post, once bool) {
	number := p.number()
	sole := once && p&postSole != 0
	if p&postSure == 0 {
		if !sole {
			if s.joinMarks[number] == s.round {
				return
			}
			s.joinMarks[number] = s.round
		}
		j := &s.snap.joins[number]
		if !sole && s.ruleMarks[j.rule] == s.round || !s.holds(j) {
			return
		}
		if !sole { // the only join of a rule has the rule's number
			number = j.rule
		}
	}
	if !sole {
		if s.ruleMarks[number] == s.round {
			return
		}
		s.ruleMarks[number] = s.round
	}
	s.matched = append(s.matched, number)
}
