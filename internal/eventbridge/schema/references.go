package schema

import (
	"net/url"
	"strconv"
	"strings"
)

// The library checks what a reference leads to, if it stands where no draft has a schema, by the draft's own schema: each such place as a whole, also those in
// each other. mostLooked bounds the objects in all of them.
const mostLooked = 4 * mostParts

// lookedAt counts the objects in places that references may lead to, where there is perhaps no schema otherwise. A place in two of them counts twice.
func lookedAt(doc any) (n int) {
	f := finder{pointers: map[string]bool{}}
	f.find(doc)
	seen := map[string]bool{}
	for _, base := range append(f.bases, place{value: doc}) {
		for pointer := range f.pointers {
			at := base.at + pointer
			if target, found := lookUp(base.value, pointer); found && !seen[at] {
				seen[at] = true
				if !f.certain(at) {
					n += parts(target)
				}
				if n > mostLooked {
					return n
				}
			}
		}
	}
	return n
}

// place is a value of a schema with its JSON Pointer.
type place struct {
	at    string
	value any
}

// finder finds the JSON Pointers of references, and what they may begin at.
type finder struct {
	pointers map[string]bool
	bases    []place
	old      bool // some of the schema is of a draft before 2019
}

func (f *finder) find(doc any) { f.below(doc, "") }

func (f *finder) below(doc any, at string) {
	switch v := doc.(type) {
	case map[string]any:
		for _, name := range [...]string{"$ref", "$dynamicRef", "$recursiveRef"} {
			text, _ := v[name].(string)
			_, fragment, _ := strings.Cut(text, "#")
			if pointer, err := url.PathUnescape(fragment); err == nil && strings.HasPrefix(pointer, "/") {
				f.pointers[pointer] = true
			}
		}
		text, _ := v["$schema"].(string)
		f.old = f.old || strings.Contains(text, "draft-0")
		_, hasID := v["$id"].(string)
		_, hadID := v["id"].(string)
		if at != "" && (hasID || hadID) {
			f.bases = append(f.bases, place{at, v})
		}
		for key, value := range v {
			f.below(value, at+"/"+escaped(key))
		}
	case []any:
		for i, value := range v {
			f.below(value, at+"/"+strconv.Itoa(i))
		}
	}
}

// escaped is a name as a JSON Pointer has it (RFC 6901, section 3), unescaped the other way round.
func escaped(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func unescaped(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// certain reports whether there is a schema at a JSON Pointer, in any draft.
func (f *finder) certain(pointer string) bool {
	for tokens := strings.Split(pointer, "/")[1:]; len(tokens) > 0; tokens = tokens[1:] {
		switch tokens[0] {
		case "not", "additionalProperties", "additionalItems":
			continue
		case "items":
			if len(tokens) > 1 {
				if _, err := strconv.Atoi(tokens[1]); err == nil {
					tokens = tokens[1:]
				}
			}
			continue
		case "$defs":
			if f.old {
				return false
			}
		case "definitions", "allOf", "anyOf", "oneOf", "properties", "patternProperties", "dependencies":
		default:
			return false
		}
		if tokens = tokens[1:]; len(tokens) == 0 {
			return false
		}
	}
	return true
}

// lookUp is what stands at a JSON Pointer.
func lookUp(v any, pointer string) (any, bool) {
	for _, token := range strings.Split(pointer, "/")[1:] {
		switch holder := v.(type) {
		case map[string]any:
			inner, ok := holder[unescaped(token)]
			if !ok {
				return nil, false
			}
			v = inner
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(holder) {
				return nil, false
			}
			v = holder[i]
		default:
			return nil, false
		}
	}
	return v, true
}
