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
	return b.visit(doc, aSchema, 0)
}

type bounds struct {
	root  any
	count int
	open  []string // the references that lead to the present place
}

// role is what a value in the text of a schema is.
type role byte

const (
	aSchema     role = iota // a schema, or a list of schemas
	schemaTable             // an object whose members are schemas with names that the author has chosen
	aValue                  // a value that data is compared with, as in const
)

// roleBelow returns the role of the value of a keyword of a schema.
func roleBelow(keyword string) role {
	switch keyword {
	case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
		return schemaTable
	case "const", "enum", "default", "examples":
		return aValue
	}
	return aSchema
}

// visit checks a value of the schema and everything below it.
func (b *bounds) visit(value any, r role, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("a schema is nested %d deep at most", MaxDepth)
	}
	if b.count++; b.count > MaxKeywords {
		return fmt.Errorf("a schema has %d keywords and values at most, counting those behind a $ref for each $ref", MaxKeywords)
	}
	switch v := value.(type) {
	case map[string]any:
		if r == aSchema {
			if err := b.visitSchema(v, depth); err != nil {
				return err
			}
		}
		for key, member := range v {
			below := r
			switch r {
			case aSchema:
				below = roleBelow(key)
			case schemaTable:
				below = aSchema
			}
			if err := b.visit(member, below, depth+1); err != nil {
				return err
			}
		}
	case []any:
		for _, element := range v {
			if err := b.visit(element, r, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitSchema checks the keywords that lead to other places.
func (b *bounds) visitSchema(schema map[string]any, depth int) error {
	if schema["$dynamicRef"] != nil || schema["$recursiveRef"] != nil {
		return errors.New("$dynamicRef and $recursiveRef are not supported: use $ref")
	}
	if schema["$id"] != nil && depth > 0 {
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
		return fmt.Errorf("$ref %q must be #/$defs/ and an existing name, without %%, ~ and /", shorten(ref))
	}
	if slices.Contains(b.open, ref) {
		return fmt.Errorf("$ref %q leads back to itself: recursive schemas are not supported", shorten(ref))
	}
	b.open = append(b.open, ref)
	err := b.visit(target, aSchema, depth+1)
	b.open = b.open[:len(b.open)-1]
	return err
}
