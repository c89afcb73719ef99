package eventpattern

import (
	"slices"
	"sync"
)

// Explanation says whether an event matches a pattern, and if not, why.
type Explanation struct {
	Match bool
	// Failed are the fields that do not match, in the order of their paths. For a pattern with $or
	// they are those of the combination of branches with the fewest failed fields, or the first
	// such combination. If each field matches alone, but not all of them match in the same elements
	// of the event's arrays, they are the fields that lead through these arrays.
	Failed []Failure
}

// Failure is a field of a pattern that an event does not match.
type Failure struct {
	// Pointer is the JSON Pointer of the field's list of alternatives in the pattern.
	Pointer string
	Cause   Cause
}

// Cause is why a field does not match.
type Cause string

// Why a field does not match.
const (
	// Missing: the event has no value at this path.
	Missing Cause = "missing"
	// Different: the event has values at this path, but none of them meets an alternative.
	Different Cause = "different"
	// Present: the event has values at this path, and the pattern requires that it has none.
	Present Cause = "present"
	// Elsewhere: the values that match are in different elements of an array.
	Elsewhere Cause = "in another element"
)

// Explain matches one event and returns which fields fail. The error is an [*EventError]. Explain
// is much slower than [Index.Match].
func (p *Pattern) Explain(event []byte) (Explanation, error) {
	e := newSnapshot().edit()
	e.add(0, p)
	snap := e.done()
	var s Scratch
	if err := s.run(snap, event); err != nil {
		return Explanation{}, err
	}
	if len(s.matched) > 0 {
		return Explanation{Match: true}, nil
	}
	var out Explanation
	crowded := sync.OnceValue(s.crowded)
	s.left = MaxEventWork
	for i := range snap.clauses {
		if failed := s.failures(snap.clauses[i].fields, crowded); i == 0 || len(failed) < len(out.Failed) {
			out.Failed = failed
		}
		if s.left < 0 {
			return Explanation{}, &EventError{Reason: TooMuchWork}
		}
	}
	return out, nil
}

func (s *Scratch) failures(fields []clauseField, crowded func() map[int32]bool) (failed []Failure) {
	for i := range fields {
		f := &fields[i]
		switch v := s.head(f.node); {
		case v == noValue && f.absent, v != noValue && s.someValueMatches(f, v):
		case v == noValue:
			failed = append(failed, Failure{f.pointer, Missing})
		case f.absent && slices.ContainsFunc(f.groups, onlyAbsent):
			failed = append(failed, Failure{f.pointer, Present})
		default:
			failed = append(failed, Failure{f.pointer, Different})
		}
	}
	if len(failed) > 0 {
		return failed
	}
	for i := range fields {
		if slices.ContainsFunc(fields[i].path, func(node int32) bool { return crowded()[node] }) {
			failed = append(failed, Failure{fields[i].pointer, Elsewhere})
		}
	}
	return failed
}

func onlyAbsent(list []condition) bool {
	return !slices.ContainsFunc(list, func(c condition) bool { return c.op != opAbsent })
}

// crowded returns the nodes that have several values with the same parent value: the elements of an
// array.
func (s *Scratch) crowded() map[int32]bool {
	crowded := map[int32]bool{}
	last := map[int32]int{} // by node: the parent of the last value seen
	for v := range s.values {
		for c := s.values[v].first; c != noValue; c = s.values[c].next {
			node := s.values[c].node
			if above, ok := last[node]; ok && above == v {
				crowded[node] = true
			}
			last[node] = v
		}
	}
	return crowded
}
