package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// forgetter puts the schema of each element of a list below two nots. For each wrong element the
// library keeps the faults of all alternatives of its schema until the list has ended: gigabytes,
// for 240 KB. Below a not it keeps nothing. The schema keeps its meaning: what was evaluated in an
// element (unevaluatedProperties) does not matter outside of it.
type forgetter struct {
	twice *jsonschema.Schema // {"not": {"not": {}}}
	seen  map[*jsonschema.Schema]bool
	below map[*jsonschema.Schema]*jsonschema.Schema // by the schema of an element: that schema below two nots
}

func newForgetter(twice *jsonschema.Schema) *forgetter {
	return &forgetter{twice: twice, seen: map[*jsonschema.Schema]bool{}, below: map[*jsonschema.Schema]*jsonschema.Schema{}}
}

// element returns s below two nots.
func (f *forgetter) element(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil || s.Bool != nil {
		return s
	}
	if f.below[s] == nil {
		outer, inner := *f.twice, *f.twice.Not
		outer.Location, inner.Location = s.Location, s.Location // locations identify cycles
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

// visit changes s and all parts that it leads to.
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

// lists changes what s says about elements of lists, and about names: the library validates each of
// them separately, and keeps texts even below a not.
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
