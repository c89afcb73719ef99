package schema

import "github.com/santhosh-tekuri/jsonschema/v6"

// eachPart calls see once for a compiled schema and for each part (subschema) that it leads to.
func eachPart(s *jsonschema.Schema, seen map[*jsonschema.Schema]bool, see func(*jsonschema.Schema)) {
	if s == nil || seen[s] {
		return
	}
	seen[s] = true
	see(s)
	for _, one := range partsBeside(s) {
		eachPart(one, seen, see)
	}
	for _, one := range partsBelow(s) {
		eachPart(one, seen, see)
	}
}

// partsBeside returns the parts that apply to the same value as s.
func partsBeside(s *jsonschema.Schema) []*jsonschema.Schema {
	all := withoutNil(s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	if s.DynamicRef != nil {
		all = append(all, withoutNil(s.DynamicRef.Ref)...)
	}
	all = append(append(append(all, s.AllOf...), s.AnyOf...), s.OneOf...)
	for _, one := range s.DependentSchemas {
		all = append(all, one)
	}
	for _, one := range s.Dependencies {
		all = append(all, partsOf(one)...)
	}
	return all
}

// partsBelow returns the parts that apply to values below: members of objects and their names,
// elements of lists, and the content of a text.
func partsBelow(s *jsonschema.Schema) []*jsonschema.Schema {
	all := withoutNil(s.PropertyNames, s.UnevaluatedProperties, s.ContentSchema, s.Contains, s.Items2020, s.UnevaluatedItems)
	for _, one := range s.Properties {
		all = append(all, one)
	}
	for _, one := range s.PatternProperties {
		all = append(all, one)
	}
	all = append(all, s.PrefixItems...)
	for _, one := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		all = append(all, partsOf(one)...)
	}
	return all
}

func withoutNil(parts ...*jsonschema.Schema) (all []*jsonschema.Schema) {
	for _, one := range parts {
		if one != nil {
			all = append(all, one)
		}
	}
	return all
}

// partsOf returns the schemas in v, which may be a schema, a list of schemas, or something else.
func partsOf(v any) []*jsonschema.Schema {
	switch v := v.(type) {
	case *jsonschema.Schema:
		return withoutNil(v)
	case []*jsonschema.Schema:
		return v
	}
	return nil
}
