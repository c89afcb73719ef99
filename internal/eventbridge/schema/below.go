package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// Each value below is charged with the parts that it is held against, and no other: a long enumeration of one member is not that of the members beside it.

// usual is what each value below costs: the look at it, and a part that is not heavy. A part that only leads to others has none below: they are charged.
const usual = 2

// heavy is what parts cost besides what is usual: all of it, and how much of that is for comparisons with lists and objects.
type heavy struct{ all, composed int }

func (h heavy) and(other heavy) heavy { return heavy{h.all + other.all, h.composed + other.composed} }

func (known costs) heavy(parts ...*jsonschema.Schema) (h heavy) {
	for _, one := range withoutNil(parts...) {
		h = h.and(heavy{known.early(one) - 1, known.composed(one)})
	}
	return h
}

// membersCost is what a part costs that an object is held against, for its members.
type membersCost struct {
	each  int              // of every member, every included
	every heavy            // of every member
	named map[string]heavy // besides, of members that have parts of their own; nil if no part is heavy
	rest  heavy            // besides, of the others
	some  heavy            // besides, of those that patterns match
}

func (known costs) membersOf(s *jsonschema.Schema) membersCost {
	c := membersCost{every: known.heavy(s.PropertyNames, s.UnevaluatedProperties)}
	if len(partsBelow(s)) > 0 || s.AdditionalProperties != nil {
		c.each = usual + len(s.PatternProperties) + c.every.all
	}
	c.rest = known.heavy(partsOf(s.AdditionalProperties)...)
	for _, one := range s.PatternProperties {
		c.some = c.some.and(known.heavy(one))
	}
	some := c.rest.all > 0
	named := make(map[string]heavy, len(s.Properties))
	for name, one := range s.Properties {
		named[name] = known.heavy(one)
		some = some || named[name].all > 0
	}
	if some {
		c.named = named
	}
	return c
}

func (c *membersCost) cost(object map[string]any) int {
	n := len(object)*c.each + len(object)/8 // that no part looks at them does not spare the names
	if c.named == nil {
		return n
	}
	for name := range object {
		if own, ok := c.named[name]; ok {
			n += own.all
		} else {
			n += c.rest.all
		}
	}
	return n
}

// long is what it costs besides that an object has long numbers.
func (c *membersCost) long(m *meter, object map[string]any) (n int) {
	if c.each == 0 { // no part looks at them
		return 0
	}
	for name, v := range object {
		own, ok := c.named[name]
		if !ok {
			own = c.rest
		}
		own = own.and(c.some)
		n += m.longBelow(v, c.each+own.all, c.every.composed+own.composed)
	}
	return n
}

// heavyPattern is one of patternProperties whose part is heavy: that costs for each name that it matches.
type heavyPattern struct {
	jsonschema.Regexp
	meter *meter
	cost  int
}

func (p *heavyPattern) MatchString(name string) bool {
	matches := p.Regexp.MatchString(name)
	if matches {
		p.meter.spend(p.cost)
	}
	return matches
}

// patternsOf is patternProperties with those whose parts are heavy counted.
func (m *meter) patternsOf(s *jsonschema.Schema, known costs) map[jsonschema.Regexp]*jsonschema.Schema {
	if s.PatternProperties == nil {
		return nil
	}
	all := make(map[jsonschema.Regexp]*jsonschema.Schema, len(s.PatternProperties))
	for pattern, one := range s.PatternProperties {
		if cost := known.heavy(one).all; cost > 0 {
			pattern = &heavyPattern{Regexp: pattern, meter: m, cost: cost}
		}
		all[pattern] = one
	}
	return all
}

// elementsCost is the same for the elements of a list.
type elementsCost struct {
	each  int     // of every element, every included
	every heavy   // of every element
	first []heavy // besides, of the first ones that have parts of their own
	rest  heavy   // besides, of the others
}

func (known costs) elementsOf(s *jsonschema.Schema) elementsCost {
	c := elementsCost{every: known.heavy(s.Contains, s.UnevaluatedItems), rest: known.heavy(s.Items2020).and(known.heavy(partsOf(s.AdditionalItems)...))}
	if len(partsBelow(s)) > 0 {
		c.each = usual + c.every.all
	}
	first := s.PrefixItems
	if items, ok := s.Items.(*jsonschema.Schema); ok {
		c.rest = c.rest.and(known.heavy(items))
	} else {
		first = append(first[:len(first):len(first)], partsOf(s.Items)...)
	}
	for _, one := range first {
		c.first = append(c.first, known.heavy(one))
	}
	return c
}

func (c *elementsCost) cost(elements int) int {
	n := elements * c.each
	first := min(elements, len(c.first))
	for _, own := range c.first[:first] {
		n += own.all
	}
	return n + (elements-first)*c.rest.all
}

// long is what it costs besides that a list has long numbers.
func (c *elementsCost) long(m *meter, list []any) (n int) {
	if c.each == 0 { // no part looks at them
		return 0
	}
	for i, v := range list {
		own := c.rest
		if i < len(c.first) {
			own = c.first[i]
		}
		n += m.longBelow(v, c.each+own.all, c.every.composed+own.composed)
	}
	return n
}
