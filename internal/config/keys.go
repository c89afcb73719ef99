package config

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// meanings has, on each line, a field of a configuration's type and what its comment says:
// "import/path.Type.Field: text". It is written by go test ./test/configuration -run TestMeanings
// -args update.
//
//go:embed meanings.txt
var meanings string

// Keys returns every key of a configuration as YAML, including the keys of every system and of the
// elements that a list or a map may have. Each has its meaning, its value in cfg, and its
// environment variable. Secrets of cfg are not shown. Elements and absent sections are comments: for
// a default configuration the result is itself a configuration with these defaults.
func Keys(binary string, cfg any) string {
	w := &keyWriter{binary: binary, meanings: map[string]string{}}
	for entry := range strings.SplitSeq(strings.TrimSpace(meanings), "\n") {
		field, text, _ := strings.Cut(entry, ": ")
		w.meanings[field] = text
	}
	for _, line := range []string{
		"# Every key of " + binary + " with its meaning, its value, and the environment variable that sets it.",
		"# Keys of list and map elements, and of sections that are absent by default, are comments. To use one, remove the # from its lines,",
		"# and the [] or {} above them.",
	} {
		w.line(keyPlace{}, line)
	}
	v := reflect.New(reflect.TypeOf(cfg)).Elem()
	v.Set(reflect.ValueOf(cfg))
	w.section(v, keyPlace{variables: true})
	return w.out.String()
}

type keyWriter struct {
	binary   string
	meanings map[string]string
	out      strings.Builder
}

// keyPlace is where keys are written.
type keyPlace struct {
	lead      string // what each line begins with: blanks, and # if the keys are a comment
	path      string
	variables bool // environment variables set these keys: not those of elements
}

func (p keyPlace) below(key, lead string) keyPlace {
	return keyPlace{lead: p.lead + lead, path: join(p.path, key), variables: p.variables}
}

// element returns the place of the keys of an element, which is a comment.
func (p keyPlace) element() keyPlace { return keyPlace{lead: p.lead + "#    "} }

func (w *keyWriter) line(p keyPlace, text string) { w.out.WriteString(p.lead + text + "\n") }

// section writes all keys of a struct.
func (w *keyWriter) section(v reflect.Value, p keyPlace) {
	for _, k := range keysOf(v.Type()) {
		w.meaning(v.Type(), k, p)
		w.key(k.name, v.FieldByIndex(k.index), p)
	}
}

func (w *keyWriter) key(name string, v reflect.Value, p keyPlace) {
	t := v.Type()
	kinds := kindsOf(t)
	switch {
	case kinds != nil:
		w.line(p, name+":")
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			w.line(p.below(name, "  "), "#"+kind+":")
			w.section(reflect.ValueOf(kinds[kind]).Elem(), p.below(name, "  ").below(kind, "#  "))
		}
	case isSection(t) && t.Kind() == reflect.Pointer && v.IsNil():
		w.line(p, "#"+name+":")
		w.section(fresh(t.Elem()).Elem(), p.below(name, "#  "))
	case isSection(t):
		w.line(p, name+":")
		w.section(reflect.Indirect(v), p.below(name, "  "))
	default:
		w.value(name, v, p)
		if element, named := elementOf(t); element != nil {
			begin := "-"
			if named {
				begin = "NAME:"
			}
			w.line(p, "#  "+begin) // with more than one blank behind #, unlike what is for people
			w.section(fresh(element).Elem(), p.element())
		}
	}
}

// elementOf returns the type of the sections in a list or a map, nil if it holds no sections. named
// reports that they have names, as in a map.
func elementOf(t reflect.Type) (element reflect.Type, named bool) {
	if (t.Kind() == reflect.Slice || t.Kind() == reflect.Map) && !decodesItself(t) && isSection(t.Elem()) {
		return indirect(t.Elem()), t.Kind() == reflect.Map
	}
	return nil, false
}

func (w *keyWriter) value(name string, v reflect.Value, p keyPlace) {
	if !p.variables {
		w.line(p, name+": "+inline(v, true))
		return
	}
	w.line(p, name+": "+inline(v, false)+" # "+EnvName(w.binary, join(p.path, name)))
}

// inline writes a value in one line. The defaults of elements are not secret, whatever their type.
func inline(v reflect.Value, reveal bool) string {
	switch {
	case v.Kind() == reflect.Slice && v.IsNil():
		return "[]"
	case v.Kind() == reflect.Map && v.IsNil():
		return "{}"
	}
	var n yaml.Node
	var err error
	if value, ok := v.Interface().(secret.String); ok && (reveal || value.Reveal() == "") {
		n.SetString(value.Reveal())
	} else {
		err = n.Encode(v.Interface())
	}
	if !reveal {
		redactNode(&n)
	}
	if n.Kind != yaml.ScalarNode {
		n.Style |= yaml.FlowStyle
	}
	text, failed := yaml.Marshal(&n)
	if err = errors.Join(err, failed); err != nil {
		panic(fmt.Sprintf("config: a default of type %s cannot be written: %s", v.Type(), err))
	}
	return strings.TrimSpace(string(text))
}

const meaningWidth = 120

// meaning writes what a key is for.
func (w *keyWriter) meaning(t reflect.Type, k key, p keyPlace) {
	of := t
	for _, i := range k.index[:len(k.index)-1] {
		of = of.Field(i).Type
	}
	field := of.Field(k.index[len(k.index)-1])
	line := ""
	for word := range strings.FieldsSeq(w.meanings[fmt.Sprintf("%s.%s.%s", of.PkgPath(), of.Name(), field.Name)]) {
		if line != "" && len(p.lead)+len(line)+len(word) > meaningWidth {
			w.line(p, "# "+line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	if line != "" {
		w.line(p, "# "+line)
	}
}
