package eventpattern

import (
	"cmp"
	"slices"
	"sort"
)

// longList is the length from which a list of alternatives is searched by bisection instead of
// compared one by one. Lists of thousands of shop or customer numbers are common.
const longList = 16

// sortLong sorts a long list of alternatives, so that anyMatches can use binary search: texts,
// numbers and literals come first.
func sortLong(group []condition) {
	if len(group) < longList {
		return
	}
	slices.SortStableFunc(group, func(a, b condition) int {
		if a.op != opExact || b.op != opExact {
			return cmp.Compare(min(a.op, 1), min(b.op, 1))
		}
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.text, b.text))
	})
}

// anyMatches reports whether a value meets one of the alternatives. It stops when no steps are
// left: then the result is not valid.
func (s *Scratch) anyMatches(group []condition, k kind, data []byte) bool {
	if len(group) >= longList {
		exact := sort.Search(len(group), func(i int) bool { return group[i].op != opExact })
		at := sort.Search(exact, func(i int) bool {
			s.left--
			c := &group[i]
			return c.kind > k || c.kind == k && c.text >= string(data)
		})
		if at < exact && s.matches(&group[at], k, data) {
			return true
		}
		group = group[exact:]
	}
	for i := 0; i < len(group) && s.left >= 0; i++ {
		if s.matches(&group[i], k, data) {
			return true
		}
	}
	return false
}
