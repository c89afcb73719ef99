package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// Each value below another is charged only for the parts that apply to it: a long enumeration for
// one member costs nothing for the other members.

// usual is what each value below costs: one step to look at it, and one for a part that is not
// heavy. A part that only leads to other parts has none below: the other parts are charged.
const usual = 2

// heavy is what parts cost in addition to usual: all of it, and how much of it is for comparisons
// with lists and objects.
type heavy struct{ all, composed int }

func (h heavy) and(other heavy) heavy { return heavy{h.all + other.all, h.composed + other.composed} }

func (known costs) heavy(parts ...*jsonschema.Schema) (h heavy) {
	for _, one := range withoutNil(parts...) {
		h = h.and(heavy{known.early(one) - 1, known.composed(one)})
	}
	return h
}

// membersCost is what a part costs for the members of an object that it applies to.
type membersCost struct {
	each  int              // for each member, including every
	every heavy            // for each member
	named map[string]heavy // in addition, for members that have their own parts; nil if no part is heavy
	rest  heavy            // in addition, for the other members
	some  heavy            // in addition, for members that patterns match
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
	n := len(object)*c.each + len(object)/8 // the names cost even if no part looks at the members
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

// long is the additional cost if an object has long numbers.
func (c *membersCost) long(m *meter, object map[string]any) (n int) {
	if c.each == 0 { // no part looks at the members
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

// heavyPattern is an entry of patternProperties whose part is heavy: it charges for each name that
// it matches.
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

// patternsOf returns patternProperties, in which the patterns of heavy parts charge for matches.
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

// elementsCost is what a part costs for the elements of a list that it applies to.
type elementsCost struct {
	each  int     // for each element, including every
	every heavy   // for each element
	first []heavy // in addition, for the first elements, which have their own parts
	rest  heavy   // in addition, for the other elements
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

// long is the additional cost if a list has long numbers.
func (c *elementsCost) long(m *meter, list []any) (n int) {
	if c.each == 0 { // no part looks at the elements
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
