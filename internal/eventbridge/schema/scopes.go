package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// The library keeps a chain of the parts that lead to each other, from the first one to where it is, and recurses as deep: at each value there is a piece of it.
// If a part leads to itself at one value, that is a fault, whose text it makes of the whole chain, in time that grows with the square.

// mostScopes bounds the chain: so many take 20 MB of the stack.
const mostScopes = 8_192

// scopeBytes is what one takes of the stack.
const scopeBytes = 2_500

// shape is how the parts of a compiled schema lead to each other at one value.
type shape struct {
	beside map[*jsonschema.Schema][]*jsonschema.Schema
	group  map[*jsonschema.Schema]int // those of one group lead to each other

	chain        int                        // the longest, or more
	alternatives map[*jsonschema.Schema]int // that are tried of a value, each as often as it is
	tracked      map[*jsonschema.Schema]bool
}

func shapeOf(all, anchored []*jsonschema.Schema) *shape {
	h := &shape{
		beside: make(map[*jsonschema.Schema][]*jsonschema.Schema, len(all)), group: make(map[*jsonschema.Schema]int, len(all)),
		alternatives: make(map[*jsonschema.Schema]int, len(all)), tracked: map[*jsonschema.Schema]bool{},
	}
	recursive := false
	for _, s := range all {
		beside := partsBeside(s)
		if s.DynamicRef != nil {
			beside = append(beside, anchored...)
		}
		recursive = recursive || leadsAnywhere(s)
		h.beside[s] = beside
	}
	h.order(all)
	if recursive { // which may lead once to where the chain begins
		h.chain *= 2
	}
	for _, s := range all {
		if s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil {
			h.track(s, all)
		}
	}
	return h
}

// leadsAnywhere reports whether a recursive reference of s leads to what the chain has.
func leadsAnywhere(s *jsonschema.Schema) bool {
	return s.RecursiveRef != nil && s.RecursiveRef.RecursiveAnchor
}

// track marks s and what it leads to: there the library has a set of all that a value has and that is not evaluated, for each part a copy.
func (h *shape) track(s *jsonschema.Schema, all []*jsonschema.Schema) {
	if h.tracked[s] {
		return
	}
	h.tracked[s] = true
	for _, one := range h.beside[s] {
		h.track(one, all)
	}
	if leadsAnywhere(s) {
		for _, one := range all {
			h.track(one, all)
		}
	}
}

// order finds the groups, those that others lead to first (Tarjan), and what is as long as they are.
func (h *shape) order(all []*jsonschema.Schema) {
	index, low := make(map[*jsonschema.Schema]int, len(all)), make(map[*jsonschema.Schema]int, len(all))
	var open []*jsonschema.Schema
	var lengths []int // of the longest chain from a group, by its number
	var visit func(s *jsonschema.Schema)
	visit = func(s *jsonschema.Schema) {
		index[s] = len(index) + 1
		low[s] = index[s]
		open = append(open, s)
		for _, one := range h.beside[s] {
			if index[one] == 0 {
				visit(one)
				low[s] = min(low[s], low[one])
			} else if _, done := h.group[one]; !done {
				low[s] = min(low[s], index[one])
			}
		}
		if low[s] < index[s] {
			return
		}
		first := len(open) - 1
		for open[first] != s {
			first--
		}
		longest := 0
		for _, member := range open[first:] {
			h.group[member] = len(lengths)
		}
		for _, member := range open[first:] {
			tried := 0
			for _, one := range h.beside[member] {
				if g := h.group[one]; g < len(lengths) {
					longest = max(longest, lengths[g])
				}
				tried = min(tried+1+h.alternatives[one], MostSteps)
			}
			h.alternatives[member] = tried
		}
		lengths = append(lengths, longest+len(open)-first)
		h.chain = max(h.chain, lengths[len(lengths)-1])
		open = open[:first]
	}
	for _, s := range all {
		if index[s] == 0 {
			visit(s)
		}
	}
}

// returns is how many parts beside s may lead back to it.
func (h *shape) returns(s *jsonschema.Schema) (n int) {
	for _, one := range h.beside[s] {
		if h.group[one] == h.group[s] {
			n++
		}
	}
	if leadsAnywhere(s) {
		n++
	}
	return n
}

// copied is how many copies s takes of the set of what a value has: some of those that look no further take as long as the copy.
func (h *shape) copied(s *jsonschema.Schema) (quarters int) {
	if !h.tracked[s] {
		return 0
	}
	for _, one := range h.beside[s] {
		if quarters++; one.Bool != nil {
			quarters += 3
		}
	}
	if leadsAnywhere(s) {
		quarters++
	}
	return quarters
}

// most is the most alternatives of any part.
func (h *shape) most() (n int) {
	for _, tried := range h.alternatives {
		n = max(n, tried)
	}
	return n
}
