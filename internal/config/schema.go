package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A key is one YAML key of a struct: its name and the way from the struct's value to the field,
// through inlined structs.
type key struct {
	name  string
	index []int
}

// keysOf lists the keys of a struct type as yaml.v3 sees them: the tag's name, else the field's in
// lower case; "-" and unexported fields left out; inlined structs opened.
func keysOf(t reflect.Type) []key {
	var keys []key
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if name == "-" || !field.IsExported() {
			continue
		}
		if isInlined(field) {
			if field.Type.Kind() != reflect.Struct {
				panic(fmt.Sprintf("config: %s.%s: only a struct can be inlined", t, field.Name))
			}
			for _, inner := range keysOf(field.Type) {
				keys = append(keys, key{inner.name, append([]int{i}, inner.index...)})
			}
			continue
		}
		if name == "" {
			name = strings.ToLower(field.Name)
		}
		keys = append(keys, key{name, []int{i}})
	}
	return keys
}

func isInlined(field reflect.StructField) bool {
	_, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	return field.IsExported() && slices.Contains(strings.Split(options, ","), "inline")
}

// isSection reports whether values of t (a struct, or a pointer to one) are written as a mapping of
// fixed keys, rather than by their own UnmarshalYAML or UnmarshalText.
func isSection(t reflect.Type) bool {
	return indirect(t).Kind() == reflect.Struct && !decodesItself(indirect(t))
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[yaml.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) ||
		t == reflect.TypeFor[yaml.Node]()
}

// kindsOf returns a new element for each key of a map whose keys name types, see [Kinds]. t is its
// type or a pointer to that; nil for any other type.
func kindsOf(t reflect.Type) map[string]any {
	if kinds, ok := reflect.Zero(indirect(t)).Interface().(Kinds); ok {
		return kinds.Kinds()
	}
	return nil
}

// keyNames lists the keys that a section of type t may have.
func keyNames(t reflect.Type) (names []string) {
	if kinds := kindsOf(t); kinds != nil {
		return slices.Sorted(maps.Keys(kinds))
	}
	for _, k := range keysOf(t) {
		names = append(names, k.name)
	}
	return names
}

// leaves lists the paths of every key of t that holds a value rather than a section: what an
// environment variable can set. Lists and maps are values, set as a whole.
func leaves(t reflect.Type, prefix string) []string {
	var paths []string
	for _, k := range keysOf(indirect(t)) {
		field := indirect(t).FieldByIndex(k.index)
		if path := join(prefix, k.name); isSection(field.Type) {
			paths = append(paths, leaves(field.Type, path)...)
		} else {
			paths = append(paths, path)
		}
	}
	return paths
}

// find returns the value at a path of leaves, making the sections on the way that are nil pointers.
func find(v reflect.Value, path string) (reflect.Value, bool) {
	for name := range strings.SplitSeq(path, ".") {
		v = section(v)
		if v.Kind() != reflect.Struct {
			return reflect.Value{}, false
		}
		keys := keysOf(v.Type())
		i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
		if i < 0 {
			return reflect.Value{}, false
		}
		v = v.FieldByIndex(keys[i].index)
	}
	return v, true
}

// section follows a pointer to a section, and makes a section if the pointer is nil.
func section(v reflect.Value) reflect.Value {
	if v.Kind() != reflect.Pointer {
		return v
	}
	if v.IsNil() {
		v.Set(fresh(v.Type().Elem()))
	}
	return v.Elem()
}

// fresh returns a pointer to a new value of t with the defaults that the type gives itself.
func fresh(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	if d, ok := p.Interface().(Defaulter); ok {
		d.SetDefaults()
	}
	return p
}

func join(prefix, path string) string {
	switch {
	case prefix == "":
		return path
	case path == "" || strings.HasPrefix(path, "["):
		return prefix + path
	}
	return prefix + "." + path
}

// nearest returns the candidate closest to name, if one is close enough to be what was meant.
func nearest(name string, candidates []string) (string, bool) {
	fold := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	best, distance := "", 1+max(1, len(name)/3)
	for _, candidate := range candidates {
		if d := editDistance(fold(name), fold(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	return best, best != ""
}

// editDistance counts the bytes inserted, deleted, replaced or swapped with their neighbour between
// a and b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			rows[i][j] = min(replaced, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
