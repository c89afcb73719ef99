package transform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

const (
	maxTemplate = 64 << 10
	maxPaths    = 100
	maxName     = 64
)

// template is a text with places for values of the event.
//
// {NAME} stands for the value of that path; {{NAME}} for the text {NAME}; every other brace for itself, so that templates in JSON are written as JSON. Where the
// body is JSON, a value inside a string of the template is put in as text, escaped, and elsewhere as JSON; so what is made is JSON whatever the event.
// Where the body is not JSON a string is put in as it is, without quotes, and any other value as JSON. A path that the event does not have is null
// where JSON stands, and empty in text.
type template struct {
	paths []event.Pointer
	parts []part
}

// part is a text, and the value behind it unless slot is negative.
type part struct {
	text string
	slot int
	form form
}

// form says how a value is put in.
type form byte

const (
	asJSON   form = iota // outside of strings of JSON
	asString             // inside a string of JSON
	asText               // in a text that is not JSON
)

// validName reports whether a path may have that name.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

func compileTemplate(paths map[string]string, text string, isJSON bool) (*template, []error) {
	var faults []error
	fault := func(pointer, format string, args ...any) {
		faults = append(faults, &Fault{Pointer: pointer, Problem: fmt.Sprintf(format, args...)})
	}
	t := &template{}
	slots := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		pointer := "/paths/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		if !validName(name) {
			fault(pointer, "must have a name of letters, digits, _ and -, the first a letter or _, at most %d", maxName)
			continue
		}
		path, err := event.ParsePointer(paths[name])
		if err != nil {
			fault(pointer, "%s", err)
			continue
		}
		slots[name] = len(t.paths)
		t.paths = append(t.paths, path)
	}
	switch {
	case len(paths) > maxPaths:
		fault("/paths", "must be at most %d, got %d", maxPaths, len(paths))
	case len(text) > maxTemplate:
		fault("/template", "must have at most %d bytes, got %d", maxTemplate, len(text))
	case !utf8.ValidString(text):
		fault("/template", "must be UTF-8")
	}
	if len(faults) > 0 {
		return nil, faults
	}
	if err := t.parse(text, slots, isJSON); err != nil {
		fault("/template", "%s", err)
		return nil, faults
	}
	if isJSON {
		if err := t.checkJSON(text); err != nil {
			fault("/template", "%s", err)
		}
	}
	return t, faults
}

// parse finds the places. It follows the strings of JSON on the way.
func (t *template) parse(text string, slots map[string]int, isJSON bool) error {
	var literal strings.Builder
	inString := false
	for i := 0; i < len(text); {
		name, doubled := placeholder(text[i:])
		switch {
		case doubled:
			literal.WriteString("{" + name + "}")
			i += len(name) + 4
			continue
		case name != "":
			slot, known := slots[name]
			if !known {
				return fmt.Errorf("%s: {%s} is not in paths; write {{%s}} for the text itself", position(text, i), name, name)
			}
			p := part{text: literal.String(), slot: slot, form: asText}
			if isJSON {
				p.form = asJSON
				if inString {
					p.form = asString
				}
			}
			t.parts = append(t.parts, p)
			literal.Reset()
			i += len(name) + 2
			continue
		}
		literal.WriteByte(text[i])
		switch {
		case text[i] == '"':
			inString = !inString
		case text[i] == '\\' && inString && isJSON:
			n := escapeLength(text[i:])
			literal.WriteString(text[i+1 : i+n])
			i += n - 1
		}
		i++
	}
	t.parts = append(t.parts, part{text: literal.String(), slot: -1})
	return nil
}

// escapeLength is how long the escape is that text begins with, where there is enough text: no place begins within one, or a value could end it.
func escapeLength(text string) int {
	n := 2
	if strings.HasPrefix(text, `\u`) {
		n = 6
	}
	return min(n, len(text))
}

// placeholder returns the name at the beginning of text if that is {NAME}, or {{NAME}}, which is doubled.
func placeholder(text string) (name string, doubled bool) {
	inside, ok := strings.CutPrefix(text, "{")
	if !ok {
		return "", false
	}
	inner, doubled := strings.CutPrefix(inside, "{")
	end := strings.IndexByte(inner[:min(len(inner), maxName+1)], '}')
	if end < 0 || !validName(inner[:end]) {
		return "", false
	}
	if doubled && !strings.HasPrefix(inner[end:], "}}") {
		return "", false // a brace for itself, and then a place
	}
	return inner[:end], doubled
}

// position is where in text index i is, for people.
func position(text string, i int) string {
	before := text[:i]
	line := strings.Count(before, "\n") + 1
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

// checkJSON fills the places with null, or nothing inside strings, and looks at what comes out. If that is JSON, it is with all other values.
func (t *template) checkJSON(text string) error {
	sample, err := t.fill(make([][]byte, len(t.paths)))
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(sample))
	var v json.RawMessage
	err = d.Decode(&v)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s: is not JSON with its places filled in: %w", position(text, t.origin(text, int(syntax.Offset)-1)), err)
	case err != nil:
		return fmt.Errorf("%s: is not JSON with its places filled in: it ends too early", position(text, len(text)))
	}
	if at := int(d.InputOffset()); strings.TrimSpace(string(sample[at:])) != "" {
		at += len(sample[at:]) - len(strings.TrimLeft(string(sample[at:]), " \t\r\n"))
		return fmt.Errorf("%s: must be one JSON value; there is something behind it", position(text, t.origin(text, at)))
	}
	return nil
}

// origin returns the index in text of what is at index at when the places are filled as checkJSON does.
func (t *template) origin(text string, at int) int {
	made, inString := 0, false
	for i := 0; i < len(text); {
		if made >= at {
			return i
		}
		name, doubled := placeholder(text[i:])
		switch {
		case doubled:
			made += len(name) + 2
			i += len(name) + 4
			continue
		case name != "":
			if !inString {
				made += len("null")
			}
			i += len(name) + 2
			continue
		case text[i] == '"':
			inString = !inString
		case text[i] == '\\' && inString:
			n := escapeLength(text[i:])
			if at < made+n {
				return i + at - made
			}
			made += n - 1
			i += n - 1
		}
		made++
		i++
	}
	return len(text)
}

// body fills the template with what e has.
func (t *template) body(e event.Event) ([]byte, error) {
	values := make([][]byte, len(t.paths))
	for i, path := range t.paths {
		values[i], _ = path.Find(e.JSON)
	}
	return t.fill(values)
}

func (t *template) fill(values [][]byte) ([]byte, error) {
	size := 0
	for i := range t.parts {
		p := &t.parts[i]
		if size += len(p.text); p.slot >= 0 {
			size += len(values[p.slot]) + len("null")
		}
		if size > 2*MaxBytes { // what it may become smaller by is less than that
			return nil, errTooLarge()
		}
	}
	b := make([]byte, 0, size)
	for i := range t.parts {
		p := &t.parts[i]
		if b = append(b, p.text...); p.slot >= 0 {
			b = appendValue(b, values[p.slot], p.form)
		}
		if len(b) > MaxBytes {
			return nil, errTooLarge()
		}
	}
	return b, nil
}

// appendValue appends a value of the event, nil where there is none.
func appendValue(b, value []byte, f form) []byte {
	isString := len(value) >= 2 && value[0] == '"'
	switch {
	case f == asJSON && value == nil:
		return append(b, "null"...)
	case value == nil:
		return b
	case f == asJSON:
		return append(b, value...)
	case isString && f == asString:
		return append(b, value[1:len(value)-1]...) // escaped as it must be already
	case isString:
		var text string
		if json.Unmarshal(value, &text) != nil {
			return b // not of an event
		}
		return append(b, text...)
	case f == asString:
		for _, c := range value { // of JSON that is no string only these are special in one
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c < ' ':
				b = append(b, ' ') // white space between tokens
			default:
				b = append(b, c)
			}
		}
		return b
	}
	return append(b, value...)
}
