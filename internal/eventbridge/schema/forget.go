package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// forgetter puts the schema of each element of a list below two nots. Of each element that is wrong the library keeps what all alternatives of its schema
// had to say until the list has ended: gigabytes, for 240 KB. A not keeps nothing. The schema means the same, for what was evaluated of
// an element (unevaluatedProperties) is of no importance outside of it.
type forgetter struct {
	twice *jsonschema.Schema // {"not": {"not": {}}}
	seen  map[*jsonschema.Schema]bool
	below map[*jsonschema.Schema]*jsonschema.Schema // the schema of an element, by what it was
}

func newForgetter(twice *jsonschema.Schema) *forgetter {
	return &forgetter{twice: twice, seen: map[*jsonschema.Schema]bool{}, below: map[*jsonschema.Schema]*jsonschema.Schema{}}
}

// element is s below two nots.
func (f *forgetter) element(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil || s.Bool != nil {
		return s
	}
	if f.below[s] == nil {
		outer, inner := *f.twice, *f.twice.Not
		outer.Location, inner.Location = s.Location, s.Location // cycles are told by these
		inner.Not, outer.Not = s, &inner
		f.below[s] = &outer
		f.seen[&outer] = true
	}
	return f.below[s]
}

func (f *forgetter) elements(all []*jsonschema.Schema) {
	for i := range all {
		all[i] = f.element(all[i])
	}
}

// visit changes s and all that it leads to.
func (f *forgetter) visit(s *jsonschema.Schema) {
	if s == nil || f.seen[s] {
		return
	}
	f.seen[s] = true
	for _, one := range partsBeside(s) {
		f.visit(one)
	}
	for _, one := range partsBelow(s) {
		f.visit(one)
	}
	f.lists(s)
}

// lists changes what s says of the elements of lists, and of names: the library validates each of these anew, and keeps texts even below a not.
func (f *forgetter) lists(s *jsonschema.Schema) {
	s.PropertyNames = f.element(s.PropertyNames)
	s.Contains, s.Items2020, s.UnevaluatedItems = f.element(s.Contains), f.element(s.Items2020), f.element(s.UnevaluatedItems)
	f.elements(s.PrefixItems)
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		s.Items = f.element(items)
	case []*jsonschema.Schema:
		f.elements(items)
	}
	if items, ok := s.AdditionalItems.(*jsonschema.Schema); ok {
		s.AdditionalItems = f.element(items)
	}
}
