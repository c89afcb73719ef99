// Package configuration_test compares what is said about keys, by -config.print and by the files in
// configs, with the types of the configurations.
package configuration_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/internal/sonic"
)

type service struct {
	name     string
	defaults any
	load     func(t *testing.T, file string) (any, error)
}

func services() []service {
	return []service{
		{"nightingale", nightingale.DefaultConfig(), loader("nightingale", nightingale.DefaultConfig)},
		{"pigeonhole", pigeonhole.DefaultConfig(), loader("pigeonhole", pigeonhole.DefaultConfig)},
		{"sonic", sonic.DefaultConfig(), loader("sonic", sonic.DefaultConfig)},
		{"eventbridge", eventbridge.DefaultConfig(), loader("eventbridge", eventbridge.DefaultConfig)},
	}
}

func loader[T any](name string, defaults func() T) func(*testing.T, string) (any, error) {
	return func(t *testing.T, file string) (any, error) {
		t.Helper()
		loaded, err := config.Load(config.Spec[T]{Name: name, Defaults: defaults, Args: []string{"-config.file", file}, Usage: os.Stderr})
		return loaded.Config, err
	}
}

// TestEveryKeyIsListed: -config.print has the keys of all systems, and sets nothing but defaults.
func TestEveryKeyIsListed(t *testing.T) {
	for _, service := range services() {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			listed := config.Keys(service.name, service.defaults)
			assertShowsAll(t, withoutProse(listed), reflect.TypeOf(service.defaults))

			file := t.TempDir() + "/keys.yaml"
			require.NoError(t, os.WriteFile(file, []byte(listed), 0o600))
			cfg, err := service.load(t, file)
			require.NoError(t, err)
			got, err := config.YAML(cfg)
			require.NoError(t, err)
			want, err := config.YAML(service.defaults)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(got))
		})
	}
}

// TestListedKeysCanBeUsed: what is a comment, as it belongs to elements and to sections that are
// not there by default, can be taken over as it stands.
func TestListedKeysCanBeUsed(t *testing.T) {
	for _, service := range services() {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			text := config.Keys(service.name, service.defaults)
			for before := ""; before != text; {
				before, text = text, withoutMarks(text)
			}
			file := t.TempDir() + "/keys.yaml"
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			_, err := service.load(t, file)
			if err != nil { // names and the like must be given
				for _, fault := range []string{"not a known key", "is not YAML", "must be a list", "must be a mapping", "given twice"} {
					assert.NotContains(t, err.Error(), fault)
				}
			}
			assertShowsAll(t, withoutComments(text), reflect.TypeOf(service.defaults))
		})
	}
}

// withoutMarks takes away the first # of lines in which it stands before keys: one blank behind it
// is what is for people.
func withoutMarks(text string) string {
	text = regexp.MustCompile(`(?m)^( *)#([a-z]| {2})`).ReplaceAllString(text, "$1$2")
	return regexp.MustCompile(`(?m)^( *\w+:) (?:\[\]|\{\})([^\n]*\n +(?:-|NAME:)$)`).ReplaceAllString(text, "$1$2")
}

// withoutProse keeps keys, those in comments, too.
func withoutProse(listed string) string {
	return regexp.MustCompile(`(?m)# \S.*$`).ReplaceAllString(listed, "")
}

func withoutComments(text string) string {
	return regexp.MustCompile(`(?m)#.*$`).ReplaceAllString(text, "")
}

// assertShowsAll looks for each key of a type at each of its places. Keys of elements that have
// names are below any name.
func assertShowsAll(t *testing.T, text string, of reflect.Type) {
	t.Helper()
	var missing []string
	shown := shownIn(text)
	for _, places := range placesOf(of) {
		for _, path := range places {
			if !isShown(path, shown) {
				missing = append(missing, path)
			}
		}
	}
	assert.Empty(t, missing)
}

func isShown(path string, shown []string) bool {
	return slices.ContainsFunc(shown, func(s string) bool { return matches(path, s) })
}

func matches(path, shown string) bool {
	if strings.Count(path, ".") != strings.Count(shown, ".") {
		return false
	}
	want, got := strings.Split(path, "."), strings.Split(shown, ".")
	for i := range want {
		if want[i] != "*" && want[i] != got[i] {
			return false
		}
	}
	return true
}

// placesOf returns the paths of each field of t, and of the types below it: "*" is the name of an
// element of a map.
func placesOf(t reflect.Type) map[string][]string {
	places := map[string][]string{}
	var visit func(t reflect.Type, prefix string)
	visit = func(t reflect.Type, prefix string) {
		if kinds := kindsOf(t); kinds != nil {
			for name, kind := range kinds {
				visit(kind, prefix+name+".")
			}
			return
		}
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			if t.Kind() == reflect.Map {
				prefix += "*."
			}
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), module) {
			return
		}
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			switch {
			case options == "inline":
				visit(field.Type, prefix)
			case isKey(field):
				id := t.String() + "." + field.Name
				places[id] = append(places[id], prefix+name)
				visit(field.Type, prefix+name+".")
			}
		}
	}
	visit(t, "")
	return places
}

// keyLine is a line with a key, or with an element in one line.
var keyLine = regexp.MustCompile(`^([ #-]*)(?:([A-Za-z0-9_]+):(?: +([^\n]*))?|({[^\n]*))\n?$`)

// kindsOf returns the types of the elements of a map whose keys name types, by these keys.
func kindsOf(t reflect.Type) map[string]reflect.Type {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kinds, ok := reflect.Zero(t).Interface().(config.Kinds)
	if !ok {
		return nil
	}
	types := map[string]reflect.Type{}
	for name, kind := range kinds.Kinds() {
		types[name] = reflect.TypeOf(kind)
	}
	return types
}

// outline has the sections that are open at a line of a listing, by their columns. A # has no
// width: keys in comments stand where they stand without it.
type outline []struct {
	column int
	path   string
}

func columnOf(lead string) int { return len(strings.ReplaceAll(lead, "#", "")) }

// parent returns the path of the section of a key that stands behind lead: "" at the top.
func (o *outline) parent(lead string) string {
	for len(*o) > 0 && (*o)[len(*o)-1].column >= columnOf(lead) {
		*o = (*o)[:len(*o)-1]
	}
	if len(*o) == 0 {
		return ""
	}
	return (*o)[len(*o)-1].path
}

// open opens a section below parent, and returns its path.
func (o *outline) open(lead, parent, name string) string {
	path := strings.TrimPrefix(parent+name, ".")
	*o = append(*o, struct {
		column int
		path   string
	}{columnOf(lead), path})
	return path
}

// shownIn are the paths of the keys in a text of YAML, those in its comments, too: by their
// columns.
func shownIn(text string) []string {
	var all []string
	var o outline
	for line := range strings.Lines(text) {
		m := keyLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		path, value := o.parent(m[1]), m[3]
		switch {
		case m[4] != "" && path == "":
			continue
		case m[4] != "": // an element in one line
			value = m[4]
		default:
			path = o.open(m[1], path, "."+m[2])
		}
		all = append(all, path)
		var n yaml.Node
		if yaml.Unmarshal([]byte(value), &n) == nil && len(n.Content) > 0 {
			all = append(all, below(n.Content[0], path)...)
		}
	}
	return all
}

func below(n *yaml.Node, path string) []string {
	var all []string
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			all = append(all, below(child, path)...)
		case i%2 == 1:
			name := path + "." + n.Content[i-1].Value
			all = append(append(all, name), below(child, name)...)
		}
	}
	return all
}
