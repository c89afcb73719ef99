package eventpattern

import "slices"

// exclusionSet holds the anything-but conditions of a path. A value meets all of them, except those
// that exclude it, which a lookup finds. So finding them costs as much as the number of conditions
// that exclude the value.
type exclusionSet struct {
	postings []posting
	texts    []exclusion
	excluded *lookup // of texts: the numbers of its postings are positions there
}

// exclusion is a condition that an anything-but excludes.
type exclusion struct {
	*condition
	of uint32 // position of the anything-but in exclusionSet.postings
}

func (t *exclusionSet) clone() *exclusionSet {
	if t == nil {
		return nil
	}
	c := *t
	return &c
}

func (t *exclusionSet) add(e *edit, c *condition, p posting) {
	number := uint32(len(t.postings))
	t.postings = append(t.postings, p)
	t.excluded = t.excluded.edited(e)
	for i := range c.more.but {
		but, bits := &c.more.but[i], posting(0)
		if but.proven() {
			bits = postingSure
		}
		t.excluded.add(e, but, makePosting(uint32(len(t.texts)), bits))
		t.texts = append(t.texts, exclusion{but, number})
	}
}

// find checks the postings of the conditions that at least one value of the path meets: those that
// do not exclude every value. first is the first value of the path.
func (t *exclusionSet) find(s *Scratch, first int32) {
	s.excluded = slices.Grow(s.excluded[:0], len(t.postings))[:len(t.postings)]
	clear(s.excluded)
	values := uint32(0)
	for v := first; v >= 0 && s.left >= 0; v = s.values[v].same {
		k, data := s.values[v].kind, s.data(v)
		s.found = append(t.excluded.find(s, k, data, s.found[:0]), t.excluded.any...)
		s.left -= 1 + len(s.found)
		some := false
		for _, p := range s.found {
			x := &t.texts[p.number()]
			if s.excluded[x.of] == values && (p&postingSure != 0 || s.matches(x.condition, k, data)) {
				s.excluded[x.of], some = values+1, true
			}
		}
		values++
		if !some { // no condition excludes this value
			values++
			break
		}
	}
	s.found = s.found[:0]
	for number, p := range t.postings {
		if s.excluded[number] != values {
			s.found = append(s.found, p)
		}
	}
	s.check(s.found, false)
}
