package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// Each value below is charged with the parts that it is held against, and no other: a long enumeration of one member is not that of the members beside it.

// usual is what each value below costs: the look at it, and a part that is not heavy.
const usual = 2

// heavy is what parts cost besides what is usual.
func (known costs) heavy(parts ...*jsonschema.Schema) (n int) {
	for _, one := range withoutNil(parts...) {
		n += known.early(one) - 1
	}
	return n
}

// membersCost is what a part costs that an object is held against, for its members.
type membersCost struct {
	each  int            // of every member
	named map[string]int // besides, of members that have parts of their own; nil if no part is heavy
	rest  int            // besides, of the others
	some  int            // besides, of those that patterns match
}

func (known costs) membersOf(s *jsonschema.Schema) membersCost {
	c := membersCost{each: usual + len(s.PatternProperties) + known.heavy(s.PropertyNames, s.UnevaluatedProperties)}
	c.rest = known.heavy(partsOf(s.AdditionalProperties)...)
	for _, one := range s.PatternProperties {
		c.some += known.heavy(one)
	}
	some := c.rest > 0
	named := make(map[string]int, len(s.Properties))
	for name, one := range s.Properties {
		named[name] = known.heavy(one)
		some = some || named[name] > 0
	}
	if some {
		c.named = named
	}
	return c
}

func (c *membersCost) cost(object map[string]any) int {
	n := len(object) * c.each
	if c.named == nil {
		return n
	}
	for name := range object {
		if own, ok := c.named[name]; ok {
			n += own
		} else {
			n += c.rest
		}
	}
	return n
}

// long is what it costs besides that an object has long numbers.
func (c *membersCost) long(object map[string]any) (n int) {
	for name, v := range object {
		own, ok := c.named[name]
		if !ok {
			own = c.rest
		}
		own += c.some
		n += longBelow(v, c.each+own, c.each-usual+own)
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
		if cost := known.heavy(one); cost > 0 {
			pattern = &heavyPattern{Regexp: pattern, meter: m, cost: cost}
		}
		all[pattern] = one
	}
	return all
}

// elementsCost is the same for the elements of a list.
type elementsCost struct {
	each  int   // of every element
	first []int // besides, of the first ones that have parts of their own
	rest  int   // besides, of the others
}

func (known costs) elementsOf(s *jsonschema.Schema) elementsCost {
	c := elementsCost{each: usual + known.heavy(s.Contains, s.UnevaluatedItems), rest: known.heavy(s.Items2020) + known.heavy(partsOf(s.AdditionalItems)...)}
	first := s.PrefixItems
	if items, ok := s.Items.(*jsonschema.Schema); ok {
		c.rest += known.heavy(items)
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
		n += own
	}
	return n + (elements-first)*c.rest
}

// long is what it costs besides that a list has long numbers.
func (c *elementsCost) long(list []any) (n int) {
	for i, v := range list {
		own := c.rest
		if i < len(c.first) {
			own = c.first[i]
		}
		n += longBelow(v, c.each+own, c.each-usual+own)
	}
	return n
}
