package eventpattern

import (
	"cmp"
	"slices"
	"sort"

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
	opAnythingBut // excludes the conditions in but; {"exists": true} excludes nothing
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
	few       [2]condition // memory for but, if it is short: next to it, a match needs fewer cache lines
	wild      *wildcard.Wildcard
	low, high bound // of numbers (number.AppendKey) or addresses (network.AppendKey)
}

// excluded returns the conditions that an anything-but excludes.
func (c *condition) excluded() []condition {
	if c.more == nil {
		return nil
	}
	return c.more.but
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

// bound is one end of a range. Without a key the range is not bounded at this end.
type bound struct {
	key       string
	inclusive bool
}

// bytesPerStep is how many bytes of a text count as one step where a comparison may read the whole
// text. Every comparison counts as one step more.
const bytesPerStep = 4

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
		return k == kindNumber && c.contains(data)
	}
	if k != kindString {
		return false
	}
	switch c.op {
	case opPrefix:
		return len(data) >= len(c.text) && string(data[:len(c.text)]) == c.text
	case opSuffix:
		return len(data) >= len(c.text) && string(data[len(data)-len(c.text):]) == c.text
	case opWildcard:
		if !c.more.wild.HasEnds(data) {
			return false
		}
	}
	s.left -= len(data) / bytesPerStep
	switch c.op {
	case opFoldedExact:
		return fold.Equal(data, c.text)
	case opFoldedPrefix:
		_, ok := fold.Prefix(data, c.text)
		return ok
	case opFoldedSuffix:
		return fold.Suffix(data, c.text)
	case opWildcard:
		return c.more.wild.HasMiddle(data)
	case opNetwork:
		s.key = network.AppendKey(s.key[:0], data)
		return len(s.key) > 0 && c.contains(s.key)
	}
	return false
}

// contains reports whether the range contains the number or address with this key.
func (c *condition) contains(key []byte) bool {
	low, high := &c.more.low, &c.more.high
	if low.key != "" && (string(key) < low.key || !low.inclusive && string(key) == low.key) {
		return false
	}
	return high.key == "" || string(key) < high.key || high.inclusive && string(key) == high.key
}

// overlaps reports whether two ranges may have a value in common.
func (c *condition) overlaps(other *condition) bool {
	below := func(high, low bound) bool { return high.key != "" && low.key != "" && high.key < low.key }
	return !below(c.more.high, other.more.low) && !below(other.more.high, c.more.low)
}

// longList is the length from which a list of alternatives is sorted, and searched by bisection.
// Lists of thousands of shop or customer numbers are common.
const longList = 16

// sortLong sorts a long list of alternatives, so that anyMatches can use binary search: strings,
// numbers and literals come first.
func sortLong(list []condition) {
	if len(list) < longList {
		return
	}
	slices.SortStableFunc(list, func(a, b condition) int {
		if a.op != opExact || b.op != opExact {
			return cmp.Compare(min(a.op, 1), min(b.op, 1))
		}
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.text, b.text))
	})
}

// anyMatches reports whether a value meets one of the alternatives. It stops when no steps are
// left: then the result is not valid.
func (s *Scratch) anyMatches(list []condition, k kind, data []byte) bool {
	if len(list) >= longList {
		exact := sort.Search(len(list), func(i int) bool { return list[i].op != opExact })
		at := sort.Search(exact, func(i int) bool {
			s.left--
			c := &list[i]
			return c.kind > k || c.kind == k && c.text >= string(data)
		})
		if at < exact && s.matches(&list[at], k, data) {
			return true
		}
		list = list[exact:]
	}
	for i := 0; i < len(list) && s.left >= 0; i++ {
		if s.matches(&list[i], k, data) {
			return true
		}
	}
	return false
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
	return !slices.ContainsFunc(f.groups, func(list []condition) bool { return !hasAbsent(list) })
}

func hasAbsent(list []condition) bool {
	return slices.ContainsFunc(list, func(c condition) bool { return c.op == opAbsent })
}

// conjunction is a list of fields that all must hold, sorted by path.
type conjunction []*field
