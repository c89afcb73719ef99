package match

import (
	"slices"
	"sync"
)

// Explanation says whether an event matches a pattern, and if not, why.
type Explanation struct {
	Match bool
	// Failed are the fields that keep the event from matching, in the order of their paths. Of a pattern with $or they are those of the combination of
	// branches of which the fewest fail, the first such. If each of its fields can hold alone, but not all in the same elements of the event's arrays,
	// they are the fields that lead through such arrays.
	Failed []Failure
}

// Failure is a field of a pattern that an event does not match.
type Failure struct {
	// Pointer is the JSON Pointer of the field's list in the pattern.
	Pointer string
	Cause   Cause
}

// Cause is why a field does not match.
type Cause string

// Why a field does not match.
const (
	// Missing: the event has no value there.
	Missing Cause = "missing"
	// Different: the event has values there, and none is among the alternatives.
	Different Cause = "different"
	// Present: the event has values there, and the pattern wants none.
	Present Cause = "present"
	// Elsewhere: the values that match are in different elements of an array.
	Elsewhere Cause = "in another element"
)

// Explain matches one event and tells which fields fail. The error is an [*EventError]. It is slower than [Index.Match] by far.
func (p *Pattern) Explain(event []byte) (Explanation, error) {
	e := newSnapshot().edit()
	e.add(p)
	// Branches that no event can match have no join; they are explained all the same.
	joins := make([][]joinField, len(p.branches))
	for i, c := range p.branches {
		for _, f := range c {
			joins[i] = append(joins[i], newJoinField(f, e.nodesOf(f.path)))
		}
	}
	var s Scratch
	if err := s.run(e.done(), event); err != nil {
		return Explanation{}, err
	}
	if len(s.matched) > 0 {
		return Explanation{Match: true}, nil
	}
	var out Explanation
	crowded := sync.OnceValue(s.crowded)
	s.left = MaxEventWork
	for i, fields := range joins {
		if failed := s.failures(fields, crowded); i == 0 || len(failed) < len(out.Failed) {
			out.Failed = failed
		}
		if s.left < 0 {
			return Explanation{}, &EventError{Reason: TooMuchWork}
		}
	}
	return out, nil
}

func (s *Scratch) failures(fields []joinField, crowded func() map[int32]bool) (failed []Failure) {
	for i := range fields {
		f := &fields[i]
		switch v := s.head(f.node); {
		case v == noValue && f.absent, v != noValue && s.some(f, v):
		case v == noValue:
			failed = append(failed, Failure{f.pointer, Missing})
		case f.absent && !f.present():
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

// crowded are the nodes of which some value has several below it: the elements of an array.
func (s *Scratch) crowded() map[int32]bool {
	crowded := map[int32]bool{}
	last := map[int32]int{} // by node: the value above the one seen last
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
