package schema

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
)

// If a reference leads to a place where no draft has a schema, the library checks that place by the
// draft's own schema: each place as a whole, even if one is inside another. mostLooked bounds the
// objects in all such places.
const mostLooked = 4 * mostParts

// mostLookups bounds the search for the targets of references: each target is looked up below each
// identifier.
const mostLookups = 2_000_000

// checkReferences bounds the objects in places that references may lead to, and that may not be
// schemas otherwise. An object in two such places counts twice.
func checkReferences(doc any) error {
	f := finder{pointers: map[string][]string{}}
	f.below(doc, nil)
	seen := map[string]bool{}
	looked, left := 0, mostLookups
	for _, base := range append(f.bases, place{value: doc}) {
		for pointer, tokens := range f.pointers {
			target, depth, found := lookUp(base.value, tokens)
			if left -= depth; found {
				left -= (len(base.at) + len(pointer)) / 16
			}
			if left < 0 {
				return errors.New("a schema has too many references with JSON Pointers for so many $id")
			}
			at := base.at + pointer
			if !found || seen[at] {
				continue
			}
			seen[at] = true
			if !f.certain(doc, at) {
				looked += parts(target)
			}
			if looked > mostLooked {
				return errors.New("references point to too many values that are not schemas otherwise: put them into $defs")
			}
		}
	}
	return nil
}

// place is a value of a schema with its JSON Pointer.
type place struct {
	at    string
	value any
}

// finder finds the JSON Pointers of references, and the places that these may start from.
type finder struct {
	pointers map[string][]string // with the names and indexes in each
	bases    []place
	old      bool // some part of the schema is of a draft before 2019
}

func (f *finder) below(doc any, at []string) {
	switch v := doc.(type) {
	case map[string]any:
		for _, name := range [...]string{"$ref", "$dynamicRef", "$recursiveRef"} {
			text, _ := v[name].(string)
			_, fragment, _ := strings.Cut(text, "#")
			if pointer, err := url.PathUnescape(fragment); err == nil && strings.HasPrefix(pointer, "/") && f.pointers[pointer] == nil {
				f.pointers[pointer] = tokensOf(pointer)
			}
		}
		text, _ := v["$schema"].(string)
		f.old = f.old || strings.Contains(text, "draft-0")
		_, hasID := v["$id"].(string)
		_, hadID := v["id"].(string)
		if len(at) > 0 && (hasID || hadID) {
			f.bases = append(f.bases, place{pointerOf(at), v})
		}
		for key, value := range v {
			f.below(value, append(at, key))
		}
	case []any:
		for i, value := range v {
			f.below(value, append(at, strconv.Itoa(i)))
		}
	}
}

// pointerOf makes a JSON Pointer (RFC 6901, section 3) of names and indexes.
func pointerOf(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// tokensOf splits a JSON Pointer into its names and indexes.
func tokensOf(pointer string) []string {
	tokens := strings.Split(pointer, "/")[1:]
	for i, token := range tokens {
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return tokens
}

// certain reports whether there is a schema at a JSON Pointer, whatever the draft is.
func (f *finder) certain(v any, pointer string) bool {
	for tokens := tokensOf(pointer); len(tokens) > 0; {
		part, _ := v.(map[string]any)
		keyword := tokens[0]
		v, tokens = part[keyword], tokens[1:]
		list, isList := v.([]any)
		switch keyword {
		case "not", "additionalProperties", "additionalItems":
			continue
		case "items": // a schema or, in older drafts, a list of them
			if !isList || len(tokens) == 0 {
				continue
			}
		case "allOf", "anyOf", "oneOf":
		case "$defs", "definitions", "properties", "patternProperties", "dependencies":
			names, _ := v.(map[string]any)
			if len(tokens) == 0 || keyword == "$defs" && f.old {
				return false
			}
			v, tokens = names[tokens[0]], tokens[1:]
			continue
		default:
			return false
		}
		if len(tokens) == 0 {
			return false
		}
		i, err := strconv.Atoi(tokens[0])
		if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != tokens[0] { // for the library, 00 is another place than 0
			return false
		}
		v, tokens = list[i], tokens[1:]
	}
	return true
}

// lookUp returns the value at a JSON Pointer, and how many names and indexes it has looked up.
func lookUp(v any, tokens []string) (target any, depth int, found bool) {
	for before, token := range tokens {
		switch holder := v.(type) {
		case map[string]any:
			inner, ok := holder[token]
			if !ok {
				return nil, before + 1, false
			}
			v = inner
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(holder) {
				return nil, before + 1, false
			}
			v = holder[i]
		default:
			return nil, before + 1, false
		}
	}
	return v, len(tokens), true
}
