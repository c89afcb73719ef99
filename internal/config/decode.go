package config

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A decoder sets the fields of a configuration from YAML nodes and collects every fault on the way.
// It uses yaml.v3's own decoder only for single values. That one can be strict about keys only when
// it reads text, and knows lines but not paths: it can neither say "lanes[2].from" nor read a tree
// whose ${VAR} are expanded.
type decoder struct {
	origins  map[string]string        // where the value at a path was set
	expanded map[*yaml.Node]yaml.Kind // scalars in which a ${VAR} was replaced
	followed map[*yaml.Node]bool      // aliases on the way from the root to the current node
	follows  int                      // aliases followed in all
	faults   []*FieldError
	root     reflect.Type
}

// maxFollows bounds the aliases of a file, each counted as often as it is met: a few lines of
// aliases of aliases can stand for more than any machine decodes.
const maxFollows = 20_000

func (d *decoder) fault(path, origin, format string, args ...any) {
	d.faults = append(d.faults, &FieldError{Path: path, Problem: fmt.Sprintf(format, args...), Origin: origin})
}

func line(n *yaml.Node) string {
	if n.Line == 0 {
		return ""
	}
	return fmt.Sprintf("line %d", n.Line)
}

// file decodes a whole YAML document into v, a pointer to the configuration. It returns false if
// the text has no content.
func (d *decoder) file(text []byte, v reflect.Value, lookup func(string) (string, bool)) bool {
	var documents []*yaml.Node
	stream := yaml.NewDecoder(strings.NewReader(string(text)))
	for {
		var n yaml.Node
		if err := stream.Decode(&n); err != nil {
			if plain := plainText(err); plain != "EOF" {
				d.fault("", "", "is not YAML: %s", plain)
				return true
			}
			break
		}
		documents = append(documents, &n)
	}
	if len(documents) > 1 {
		d.fault("", line(documents[1]), "must be one YAML document, got %d", len(documents))
	}
	if len(documents) == 0 {
		return false
	}
	root := documents[0].Content[0]
	d.expand(root, v.Type().Elem(), "", lookup)
	d.decode(root, v.Elem(), "", "")
	return root.ShortTag() != "!!null"
}

// expand replaces ${VAR} and ${VAR:-default} in the scalars of the parsed tree, so that a value can
// never add keys or break the syntax. A plain scalar that changed loses its type: it becomes a
// number or a truth value when it now looks like one. "$${" stands for "${".
func (d *decoder) expand(n *yaml.Node, t reflect.Type, path string, lookup func(string) (string, bool)) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			d.expand(n.Content[i+1], below(t, name), join(path, name), lookup)
		}
	case yaml.SequenceNode:
		for i, element := range n.Content {
			d.expand(element, below(t, ""), fmt.Sprintf("%s[%d]", path, i), lookup)
		}
	case yaml.ScalarNode:
		if !strings.Contains(n.Value, "${") {
			return
		}
		value, errs := expandText(n.Value, holdsSecret(t), lookup)
		for _, err := range errs {
			d.fault(path, line(n), "%s", err)
		}
		n.Value = value
		if n.Style == 0 && value != "" { // a value that became empty stays a text: without a type it would be null
			n.Tag = ""
		}
		d.expanded[n] = n.Kind
	}
}

func expandText(text string, hide bool, lookup func(string) (string, bool)) (string, []error) {
	var errs []error
	reference := regexp.MustCompile(`\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}|\$\{[^}]*\}?`)
	out := reference.ReplaceAllStringFunc(text, func(match string) string {
		m := reference.FindStringSubmatch(match)
		name, fallback := m[1], m[2]
		switch value, set := lookup(name); {
		case match == "$${":
			return "${"
		case name == "":
			const want = "must refer to the environment as ${NAME} or ${NAME:-default} (and write $${ for a plain ${)"
			if hide {
				errs = append(errs, errors.New(want))
			} else {
				errs = append(errs, fmt.Errorf(want+", got %q", match))
			}
		case set && (value != "" || fallback == ""):
			return value
		case fallback != "":
			return strings.TrimPrefix(fallback, ":-")
		default:
			errs = append(errs, fmt.Errorf("needs the environment variable %s, which is not set; ${%s:-default} gives a default", name, name))
		}
		return match
	})
	return out, errs
}

// decode sets v from n. Mappings are merged into sections; everything else is replaced as a whole.
// A key without a value changes nothing.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, path, origin string) {
	if n.Kind == yaml.AliasNode {
		d.follow(n, path, origin, func() { d.decode(n.Alias, v, path, origin) })
		return
	}
	if l := line(n); l != "" {
		origin = l
	}
	if path != "" {
		d.origins[path] = origin
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && (v.Kind() != reflect.String || d.expanded[n] == 0) {
		return
	}
	switch t := v.Type(); {
	case decodesItself(t):
		d.scalar(n, v, path, origin)
	case t.Kind() == reflect.Pointer:
		if v.IsNil() {
			p := fresh(t.Elem())
			d.decode(n, p.Elem(), path, origin)
			v.Set(p)
			return
		}
		d.decode(n, v.Elem(), path, origin)
	case t.Kind() == reflect.Struct:
		d.mapping(n, v, path, origin)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if n.Kind != yaml.SequenceNode {
			d.mismatch(n, t, path, origin)
			return
		}
		list := reflect.MakeSlice(t, len(n.Content), len(n.Content))
		for i, element := range n.Content {
			list.Index(i).Set(fresh(t.Elem()).Elem())
			d.decode(element, list.Index(i), fmt.Sprintf("%s[%d]", path, i), origin)
		}
		v.Set(list)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		if n.Kind != yaml.MappingNode {
			d.mismatch(n, t, path, origin)
			return
		}
		m := reflect.MakeMapWithSize(t, len(n.Content)/2)
		if kinds := kindsOf(t); kinds != nil {
			if v.IsNil() {
				v.Set(m)
			}
			d.kinds(n, v, kinds, path, origin)
			return
		}
		d.pairs(n, path, origin, func(name, value *yaml.Node) {
			element := fresh(t.Elem()).Elem()
			d.decode(value, element, join(path, name.Value), origin)
			m.SetMapIndex(reflect.ValueOf(name.Value).Convert(t.Key()), element)
		})
		v.Set(m)
	default:
		d.scalar(n, v, path, origin)
	}
}

// kinds decodes the elements of a map whose keys name types. Like sections, and unlike other maps,
// they are merged into the elements that the map has, as from a "<<". A key without a value adds
// none.
func (d *decoder) kinds(n *yaml.Node, m reflect.Value, kinds map[string]any, path, origin string) {
	d.pairs(n, path, origin, func(name, value *yaml.Node) {
		element := reflect.ValueOf(kinds[name.Value])
		if !element.IsValid() {
			d.unknown(name, m.Type(), path, origin)
			return
		}
		if value.ShortTag() == "!!null" {
			return
		}
		key := reflect.ValueOf(name.Value)
		if before := m.MapIndex(key); before.IsValid() {
			element = before.Elem()
		}
		d.decode(value, element.Elem(), join(path, name.Value), origin)
		m.SetMapIndex(key, element)
	})
}

// follow calls then for what an alias stands for, unless that contains the alias itself.
func (d *decoder) follow(alias *yaml.Node, path, origin string, then func()) {
	if d.followed[alias] {
		if l := line(alias); l != "" {
			origin = l
		}
		d.fault(path, origin, "the alias *%s is inside its own anchor &%s", alias.Value, alias.Value)
		return
	}
	if d.follows++; d.follows > maxFollows {
		if d.follows == maxFollows+1 {
			d.fault("", line(alias), "it has too many aliases: at most %d may be followed", maxFollows)
		}
		return
	}
	d.followed[alias] = true
	then()
	delete(d.followed, alias)
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path, origin string) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, v.Type(), path, origin)
		return
	}
	keys := keysOf(v.Type())
	d.pairs(n, path, origin, func(name, value *yaml.Node) {
		i := slices.IndexFunc(keys, func(k key) bool { return k.name == name.Value })
		if i < 0 {
			d.unknown(name, v.Type(), path, origin)
			return
		}
		d.decode(value, v.FieldByIndex(keys[i].index), join(path, name.Value), origin)
	})
}

// pairs calls visit for each key and value of a mapping: those merged in by "<<" first, so that the
// mapping's own win. A key given twice is a fault.
func (d *decoder) pairs(n *yaml.Node, path, origin string, visit func(name, value *yaml.Node)) {
	seen := map[string]int{}
	for pass := range 2 {
		for i := 0; i+1 < len(n.Content); i += 2 {
			name, value := n.Content[i], n.Content[i+1]
			if merge := name.Tag == "!!merge"; merge != (pass == 0) {
				continue
			} else if merge {
				d.merge(value, path, origin, visit)
				continue
			}
			if first, ok := seen[name.Value]; ok {
				d.fault(join(path, name.Value), line(name), "is given twice: first in line %d", first)
				continue
			}
			seen[name.Value] = name.Line
			visit(name, value)
		}
	}
}

func (d *decoder) merge(n *yaml.Node, path, origin string, visit func(name, value *yaml.Node)) {
	switch n.Kind {
	case yaml.AliasNode:
		d.follow(n, path, origin, func() { d.merge(n.Alias, path, origin, visit) })
	case yaml.SequenceNode:
		for _, element := range slices.Backward(n.Content) { // the first in the list wins, so it comes last
			d.merge(element, path, origin, visit)
		}
	case yaml.MappingNode:
		d.pairs(n, path, origin, visit)
	default:
		d.fault(join(path, "<<"), line(n), "must be a mapping of keys, or a list of them")
	}
}

func (d *decoder) unknown(name *yaml.Node, t reflect.Type, path, origin string) {
	if l := line(name); l != "" {
		origin = l
	}
	names := keyNames(t)
	if _, near := nearest(name.Value, names); !near && t.Kind() == reflect.Struct && strings.HasSuffix(path, "]") && slices.ContainsFunc(keysOf(t), func(k key) bool {
		field := t.FieldByIndex(k.index).Type
		return holdsSecret(field) && !isSection(field) && kindsOf(field) == nil
	}) {
		// In a list of sections with secrets, such as tokens of tenants, people write {token:
		// tenant}: the unknown key may be a secret.
		d.fault(path, origin, "has an unknown key, which is not shown; known here: %s", strings.Join(names, ", "))
		return
	}
	given, hint := name.Value, ""
	if colon := strings.IndexByte(given, ':'); colon >= 0 { // the text after the colon may be a secret
		given = given[:colon] + ":..."
	}
	full := join(path, given)
	if given != name.Value {
		hint = "; a space must follow the colon"
	} else if near, ok := nearest(name.Value, names); ok {
		hint = fmt.Sprintf("; did you mean %s?", join(path, near))
	} else if i := slices.IndexFunc(leaves(d.root, ""), func(leaf string) bool { return strings.HasSuffix(leaf, "."+name.Value) }); i >= 0 {
		hint = fmt.Sprintf("; did you mean %s?", leaves(d.root, "")[i])
	} else if len(names) > 0 {
		hint = "; known here: " + strings.Join(names, ", ")
	}
	d.fault(full, origin, "is not a known key%s", hint)
}

// ambiguous returns a number with a leading zero, among those that are decoded from n for t: YAML
// 1.1 reads 0100 as 64, YAML 1.2 and people as 100.
func ambiguous(n *yaml.Node, t reflect.Type) (*yaml.Node, bool) {
	if t.Kind() == reflect.Interface {
		for _, child := range n.Content {
			if found, ok := ambiguous(child, t); ok {
				return found, true
			}
		}
	}
	const notPlain = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Kind != yaml.ScalarNode || n.Style&notPlain != 0 || !regexp.MustCompile(`^[-+]?0[0-9_]`).MatchString(n.Value) {
		return nil, false
	}
	switch {
	case t == reflect.TypeFor[Bytes]():
		return n, true
	case decodesItself(t) || t == reflect.TypeFor[time.Duration]():
		return nil, false
	case t.Kind() == reflect.Interface:
		return n, n.ShortTag() == "!!int" || n.ShortTag() == "!!float"
	}
	return n, reflect.Int <= t.Kind() && t.Kind() <= reflect.Float64
}

// scalar sets a single value, and leaves v as it was when that fails.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path, origin string) {
	t, target := v.Type(), reflect.New(v.Type())
	if number, ok := ambiguous(n, t); ok {
		d.fault(path, origin, "must be a number without zeros in front (0100 is 64 to some and 100 to others), got %q", number.Value)
		return
	}
	target.Elem().Set(v)
	var err error
	switch {
	case t == reflect.TypeFor[time.Duration]() && n.Kind == yaml.ScalarNode:
		var duration time.Duration
		duration, err = time.ParseDuration(n.Value)
		target.Elem().SetInt(int64(duration))
	case t.Kind() == reflect.String && d.expanded[n] != 0:
		target.Elem().SetString(n.Value) // the text stays as it was expanded, even if it reads "null" or "1e3"
	default:
		err = n.Decode(target.Interface())
	}
	if err == nil {
		v.Set(target.Elem())
		return
	}
	if t == reflect.TypeFor[netip.Prefix]() && n.Kind == yaml.ScalarNode {
		d.fault(path, origin, "must be a network such as 10.1.0.0/16 or 192.0.2.7/32, got %q", n.Value)
		return
	}
	if decodesItself(t) && n.Kind == yaml.ScalarNode {
		d.fault(path, origin, "%s", plainText(err))
		return
	}
	d.mismatch(n, t, path, origin)
}

func (d *decoder) mismatch(n *yaml.Node, t reflect.Type, path, origin string) {
	want := map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.Float32: "a number", reflect.Float64: "a number", reflect.String: "a single text",
		reflect.Slice: "a list", reflect.Map: "a mapping of keys", reflect.Struct: "a mapping of keys",
	}[t.Kind()]
	switch {
	case t == reflect.TypeFor[time.Duration]():
		want = "a duration such as 500ms, 10s or 1m30s"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		want = "a text"
	case reflect.Int <= t.Kind() && t.Kind() <= reflect.Int64:
		want = "a whole number"
		if t.Bits() < 64 {
			want = fmt.Sprintf("a whole number that fits in %d bits", t.Bits())
		}
	case reflect.Uint <= t.Kind() && t.Kind() <= reflect.Uintptr:
		want = "a whole number >= 0"
		if t.Bits() < 64 {
			want = fmt.Sprintf("a whole number >= 0 that fits in %d bits", t.Bits())
		}
	case want == "":
		want = "a valid value"
	}
	got := map[yaml.Kind]string{yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}[n.Kind]
	switch {
	case got != "":
	case holdsSecret(t):
		got = "a single value, which is not shown"
	default:
		got = fmt.Sprintf("%q", n.Value)
		if _, err := strconv.ParseUint(n.Value, 10, 32); err == nil && t == reflect.TypeFor[time.Duration]() {
			got += fmt.Sprintf("; did you mean %ss?", n.Value) // a number without a unit: other programs take seconds
		}
	}
	d.fault(path, origin, "must be %s, got %s", want, got)
}

// text sets the value at v from the text of an environment variable or a flag. A text is taken as
// it stands; lists and maps are written in YAML, or simply as "a,b" and "a=1,b=2".
func (d *decoder) text(text string, v reflect.Value, path, origin string) {
	d.origins[path] = origin
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	d.expanded[n] = n.Kind
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := t.Kind(); {
	case decodesItself(t) || (kind != reflect.Slice && kind != reflect.Map && kind != reflect.Interface):
		if text == "" {
			n.Tag = "!!str" // set to empty is not the same as not set, which a plain empty scalar would mean
		}
	default:
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(text), &document); err != nil {
			if holdsSecret(t) {
				err = errors.New("what is wrong with it is not shown")
			}
			d.fault(path, origin, "is not YAML: %s", plainText(err))
			return
		}
		if kind == reflect.Interface && len(document.Content) == 0 {
			break
		}
		if len(document.Content) > 0 {
			n = document.Content[0]
		}
		if n.Kind == yaml.ScalarNode && kind != reflect.Interface {
			n = simpleList(text, kind)
		}
		clearLines(n)
	}
	d.decode(n, v, path, origin)
}

// simpleList reads "a,b" as a list and "a=1,b=2" as a mapping; a part without "=" makes the whole a
// list, which the decoder then refuses.
func simpleList(text string, kind reflect.Kind) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if kind == reflect.Map {
		n.Kind = yaml.MappingNode
	}
	if strings.TrimSpace(text) == "" {
		return n
	}
	for part := range strings.SplitSeq(text, ",") {
		if kind == reflect.Map {
			name, value, ok := strings.Cut(part, "=")
			if !ok {
				return &yaml.Node{Kind: yaml.ScalarNode, Value: text, Tag: "!!str"}
			}
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(name), Tag: "!!str"})
			part = value
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(part)})
	}
	return n
}

// clearLines makes the faults of a text name its origin: its lines are not the file's.
func clearLines(n *yaml.Node) {
	n.Line = 0
	for _, child := range n.Content {
		clearLines(child)
	}
}

// plainText returns an error of yaml.v3 without the "yaml: " in front, nor the line where the fault
// names it.
func plainText(err error) string {
	var types *yaml.TypeError
	if errors.As(err, &types) {
		return strings.Join(types.Errors, "; ")
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return regexp.MustCompile(`^unknown anchor '.*' referenced$`).ReplaceAllString(text, "a value that begins with * refers to an anchor, which is not there")
}
