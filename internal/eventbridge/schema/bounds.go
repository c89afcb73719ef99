package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// These bound schemas. With them, and without references that lead back to themselves, each value
// of the data is looked at for a bounded number of keywords.
const (
	// MaxBytes bounds the text of a schema.
	MaxBytes = 64 << 10
	// MaxDepth bounds how deep a schema is nested. A reference leads one level deeper.
	MaxDepth = 64
	// MaxKeywords bounds the members and elements of a schema, those that a reference leads to for
	// each reference.
	MaxKeywords = 5000
)

// prepare checks the bounds, and makes the schema use this package's uniqueItems.
func prepare(doc any) error {
	b := bounds{root: doc}
	return b.visit(doc, keywords, 0)
}

type bounds struct {
	root  any
	count int
	open  []string // the references that lead to the present place
}

// meaning says what the members of an object are.
type meaning byte

const (
	keywords meaning = iota // the object is a schema
	names                   // each member is a schema with a name that the author has chosen
	data                    // the object is a value of the data, as in const
)

// below returns what the members of the value of a keyword are.
func (m meaning) below(key string) meaning {
	switch m {
	case names:
		return keywords
	case data:
		return data
	}
	switch key {
	case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
		return names
	case "const", "enum", "default", "examples":
		return data
	}
	return keywords
}

// visit checks a value of the schema and everything below it.
func (b *bounds) visit(value any, m meaning, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("a schema is nested %d deep at most", MaxDepth)
	}
	if b.count++; b.count > MaxKeywords {
		return fmt.Errorf("a schema has %d keywords and values at most, counting those behind a $ref for each $ref", MaxKeywords)
	}
	switch v := value.(type) {
	case map[string]any:
		if m == keywords {
			if err := b.visitSchema(v, depth); err != nil {
				return err
			}
		}
		for key, value := range v {
			if err := b.visit(value, m.below(key), depth+1); err != nil {
				return err
			}
		}
	case []any:
		for _, element := range v {
			if err := b.visit(element, m, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitSchema checks the keywords that lead to other places.
func (b *bounds) visitSchema(schema map[string]any, depth int) error {
	for _, key := range [...]string{"$dynamicRef", "$recursiveRef"} {
		if _, there := schema[key]; there {
			return fmt.Errorf("%s is not supported: use $ref", key)
		}
	}
	if _, there := schema["$id"]; there && depth > 0 {
		return errors.New("$id is supported at the top of a schema only")
	}
	if unique, is := schema["uniqueItems"].(bool); is {
		delete(schema, "uniqueItems")
		schema[uniqueKeyword] = unique
	}
	if ref, is := schema["$ref"].(string); is {
		return b.follow(ref, depth)
	}
	return nil
}

// follow visits what a reference leads to.
func (b *bounds) follow(ref string, depth int) error {
	if !strings.HasPrefix(ref, "#") {
		return fmt.Errorf("%w: $ref %q must begin with #/$defs/", errRemote, shorten(ref))
	}
	section, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/"), "/")
	root, _ := b.root.(map[string]any)
	definitions, _ := root[section].(map[string]any)
	target, found := definitions[name]
	if section != "$defs" && section != "definitions" || !found || strings.ContainsAny(name, "%~/") { // the library decodes these
		return fmt.Errorf("$ref %q must be #/$defs/ and a name that is there, without %%, ~ and /", shorten(ref))
	}
	if slices.Contains(b.open, ref) {
		return fmt.Errorf("$ref %q leads back to itself: recursive schemas are not supported", shorten(ref))
	}
	b.open = append(b.open, ref)
	err := b.visit(target, keywords, depth+1)
	b.open = b.open[:len(b.open)-1]
	return err
}
