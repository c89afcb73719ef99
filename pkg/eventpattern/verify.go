package eventpattern

// clauseMatches reports whether all fields of a clause hold. It stops when no steps are left: then
// the result is not valid.
func (s *Scratch) clauseMatches(c *clause) bool {
	if c.node != noNode && !s.grouped {
		v := s.head(c.node)
		for v >= 0 && s.left >= 0 && !s.matches(&c.only, s.values[v].kind, s.data(v)) {
			v = s.values[v].same
		}
		return v != noValue
	}
	for i := range c.fields {
		if int32(i) == c.known {
			continue
		}
		f := &c.fields[i]
		v := s.head(f.node)
		if v == noValue {
			if !f.absent {
				return false
			}
			continue
		}
		// With {"exists": false} the field may still hold: all values may be in elements that the
		// other fields do not match.
		if !s.someValueMatches(f, v) && (!f.absent || !s.grouped || len(c.fields) == 1) {
			return false
		}
	}
	if !s.grouped || len(c.fields) == 1 {
		return true
	}
	with, without := s.below(c.fields, 0, 0)
	return with || without
}

// someValueMatches reports whether any value of a node, from v on, meets a field.
func (s *Scratch) someValueMatches(f *clauseField, v int32) bool {
	for ; v >= 0 && s.left >= 0; v = s.values[v].same {
		if s.fieldMatches(f, s.values[v].kind, s.data(v)) {
			return true
		}
	}
	return false
}

// fieldMatches reports whether a value meets all lists of a field.
func (s *Scratch) fieldMatches(f *clauseField, k kind, data []byte) bool {
	if f.simple {
		return s.matches(&f.only, k, data)
	}
	for _, list := range f.groups {
		if !s.anyMatches(list, k, data) {
			return false
		}
	}
	return true
}

// below reports how fields whose paths lead through the value v can hold. with says that, for a
// choice of one element of each array below v, all fields hold and at least one has a value.
// without says that no field has a value and none requires one. The paths are equal up to depth,
// and sorted. So the fields that lead through the same array are neighbours, and the choices in
// different arrays are independent.
func (s *Scratch) below(fields []clauseField, depth int, v int32) (with, without bool) {
	without = true
	for i := 0; i < len(fields); {
		var some, none bool
		j := i + 1
		if f := &fields[i]; len(f.path) == depth {
			if s.values[v].kind == kindObject {
				none = f.absent
			} else {
				some = s.fieldMatches(f, s.values[v].kind, s.data(v))
			}
		} else {
			for j < len(fields) && fields[j].path[depth] == f.path[depth] {
				j++
			}
			some, none = s.elements(fields[i:j], depth, v)
		}
		if !some && !none {
			return false, false
		}
		with = with || some
		without = without && none
		i = j
	}
	return with, without
}

// elements is below for fields that have the same next step in their paths. It tries each child
// value of v at that step: one, or all elements of an array.
func (s *Scratch) elements(fields []clauseField, depth int, v int32) (with, without bool) {
	node, found := fields[0].path[depth], false
	without = true
	for c := s.values[v].first; c != noValue && s.left >= 0; c = s.values[c].next {
		s.left -= len(fields)
		if s.values[c].node != node {
			continue
		}
		found = true
		some, none := s.below(fields, depth+1, c)
		with = with || some
		without = without && none
	}
	if found {
		return with, without
	}
	for i := range fields {
		without = without && fields[i].absent
	}
	return false, without
}
