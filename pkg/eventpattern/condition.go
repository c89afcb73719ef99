package eventpattern

import (
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/fold"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/network"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// kind is the type of an event's value.
type kind uint8

const (
	kindString kind = iota
	kindNumber
	kindTrue
	kindFalse
	kindNull
	kindObject
	kindArray
)

// op is the operator of a condition.
type op uint8

const (
	opExact op = iota
	opFoldedExact
	opPrefix
	opFoldedPrefix
	opSuffix
	opFoldedSuffix
	opWildcard
	opRange
	opNetwork
	opAnythingBut // excludes the conditions in but; without any, every value meets it
	opAbsent
)

// condition is one alternative of a field. It is immutable, and small, because a match reads many.
type condition struct {
	op   op
	kind kind   // of opExact
	mark uint32 // see markOf: if two marks differ, the texts differ
	text string // a string, or the key of a number; folded for the folded operators
	more *operand
}

// operand is the operand of an operator that takes more than a text.
type operand struct {
	but       []condition
	wild      *wildcard.Wildcard
	low, high bound
	net       network.Network
}

// fewBut is an operand with its conditions next to it in memory.
type fewBut struct {
	operand
	few [2]condition
}

func newButOperand(but []condition) *operand {
	f := &fewBut{}
	if len(but) > len(f.few) {
		return &operand{but: but}
	}
	f.but = f.few[:copy(f.few[:], but)]
	return &f.operand
}

// markOf combines the length and some bytes of a text into a number, for a fast comparison.
func markOf[T string | []byte](text T) uint32 {
	n := len(text)
	if n < 2 {
		if n == 0 {
			return 0
		}
		return uint32(text[0])<<8 | 1
	}
	return uint32(text[n-1])<<24 | uint32(text[n-2])<<16 | uint32(text[0])<<8 | uint32(uint8(n))
}

func exactly(k kind, text string) condition {
	return condition{op: opExact, kind: k, mark: markOf(text), text: text}
}

// bound is one end of a range of numbers. Without a key the range is not bounded at this end.
type bound struct {
	key       string
	inclusive bool
}

// matches reports whether a value of an event meets the condition. data is the text of a string or
// the key of a number. It is empty for literals.
func (s *Scratch) matches(c *condition, k kind, data []byte) bool {
	s.left--
	switch c.op {
	case opExact:
		return k == c.kind && c.mark == markOf(data) && string(data) == c.text
	case opAnythingBut:
		return c.more == nil || !s.anyMatches(c.more.but, k, data)
	case opAbsent:
		return false
	case opRange:
		s.left--
		return k == kindNumber && c.holds(data)
	}
	if k != kindString {
		return false
	}
	switch c.op {
	case opFoldedExact, opFoldedPrefix, opFoldedSuffix:
		s.left -= min(len(data), len(c.text)) / foldedPerStep
	case opNetwork:
		s.left -= addressSteps
	}
	switch c.op {
	case opFoldedExact:
		return fold.Equal(data, c.text)
	case opPrefix:
		return len(data) >= len(c.text) && string(data[:len(c.text)]) == c.text
	case opFoldedPrefix:
		_, ok := fold.Prefix(data, c.text)
		return ok
	case opSuffix:
		return len(data) >= len(c.text) && string(data[len(data)-len(c.text):]) == c.text
	case opFoldedSuffix:
		return fold.Suffix(data, c.text)
	case opWildcard:
		if !c.more.wild.HasEnds(data) {
			return false
		}
		s.left -= len(data) / searchedPerStep
		return c.more.wild.HasMiddle(data)
	case opNetwork:
		addr, ok := network.ParseAddress(data)
		return ok && c.more.net.Contains(addr)
	}
	return false
}

// holds reports whether the range contains the number with this key.
func (c *condition) holds(key []byte) bool {
	low, high := &c.more.low, &c.more.high
	if low.key != "" && (string(key) < low.key || !low.inclusive && string(key) == low.key) {
		return false
	}
	return high.key == "" || string(key) < high.key || high.inclusive && string(key) == high.key
}

// overlaps reports whether a number may be in both ranges.
func (c *condition) overlaps(other *condition) bool {
	below := func(high, low bound) bool { return high.key != "" && low.key != "" && high.key < low.key }
	return !below(c.more.high, other.more.low) && !below(other.more.high, c.more.low)
}

// field holds the alternatives that a pattern gives for one path. It is immutable.
type field struct {
	path    []string
	pointer string // JSON Pointer of the list of alternatives
	// groups are lists of alternatives. One value must meet all of the lists. There are several if
	// a path is named both in $or and outside of it.
	groups [][]condition
}

// absent reports whether the field holds if the event has no value.
func (f *field) absent() bool {
	for _, g := range f.groups {
		if !hasAbsent(g) {
			return false
		}
	}
	return true
}

func hasAbsent(group []condition) bool {
	for i := range group {
		if group[i].op == opAbsent {
			return true
		}
	}
	return false
}

// present reports whether the field can hold for a value.
func (f *field) present() bool {
	for _, g := range f.groups {
		some := false
		for i := range g {
			some = some || g[i].op != opAbsent
		}
		if !some {
			return false
		}
	}
	return true
}

func (s *Scratch) fieldMatches(f *field, k kind, data []byte) bool {
	for _, g := range f.groups {
		if !s.anyMatches(g, k, data) {
			return false
		}
	}
	return true
}

// conjunction is a list of fields that all must hold, sorted by path.
type conjunction []*field
