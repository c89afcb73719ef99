package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// The library recurses into the parts that lead to each other, and keeps a chain of them from the
// first part to the present one. Each value has a piece of the chain. A part that leads to itself
// at one value is a fault. The library makes the text of the fault from the whole chain, in time
// that grows with the square of its length.

// mostScopes bounds the length of the chain: so many parts take 20 MB of the stack.
const mostScopes = 8_192

// scopeBytes is how much of the stack one part of the chain takes.
const scopeBytes = 2_500

// shape is how the parts of a compiled schema lead to each other at one value.
type shape struct {
	beside map[*jsonschema.Schema][]*jsonschema.Schema
	group  map[*jsonschema.Schema]int // parts of one group lead to each other

	chain        int                        // the length of the longest chain, or more
	alternatives map[*jsonschema.Schema]int // how many alternatives a part tries on one value, see Schema.tried
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
	if recursive { // a recursive reference may lead once to where the chain begins
		h.chain *= 2
	}
	for _, s := range all {
		if s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil {
			h.track(s, all)
		}
	}
	return h
}

// leadsAnywhere reports whether s has a recursive reference to any part of the chain.
func leadsAnywhere(s *jsonschema.Schema) bool {
	return s.RecursiveRef != nil && s.RecursiveRef.RecursiveAnchor
}

// track marks s and the parts that it leads to. For these the library keeps a set of what a value
// has and what is not evaluated yet, and copies it for each part.
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

// order finds the groups (Tarjan), first those that others lead to. It also computes chain and
// alternatives.
func (h *shape) order(all []*jsonschema.Schema) {
	index, low := make(map[*jsonschema.Schema]int, len(all)), make(map[*jsonschema.Schema]int, len(all))
	var open []*jsonschema.Schema
	var lengths []int // the longest chain from a group, by the group's number
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

// returns counts the parts beside s that may lead back to it.
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

// copied returns the cost of the copies that s makes of the set of what a value has, in quarters of
// a copy. A part that is true or false looks no further, and may cost as much as the copy.
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

// most returns the most alternatives of any part.
func (h *shape) most() (n int) {
	for _, tried := range h.alternatives {
		n = max(n, tried)
	}
	return n
}
