package template

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

// template is a text with placeholders for values of the event.
//
// {NAME} stands for the value at the path of that name, {{NAME}} for the text {NAME}, and every
// other brace for itself: a JSON template is written as JSON. If the body is JSON, a value is
// inserted as escaped text inside a string of the template, and as JSON elsewhere: the result is
// JSON for every event. If the body is not JSON, a string is inserted as it is, without quotes, and
// any other value as JSON. A path that the event does not have is null where JSON stands, and empty
// in text.
type template struct {
	paths []event.Pointer
	parts []part
}

// part is a text and, unless slot is negative, the value that follows it.
type part struct {
	text string
	slot int
	form form
}

// form is how a value is inserted.
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
	case text == "":
		fault("/template", "must be given")
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

// parse finds the placeholders. It tracks whether it is inside a JSON string.
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

// escapeLength returns the length of the escape at the beginning of text, or of text if that is
// shorter. No placeholder begins within an escape: a value could end the escape.
func escapeLength(text string) int {
	n := 2
	if strings.HasPrefix(text, `\u`) {
		n = 6
	}
	return min(n, len(text))
}

// placeholder returns the name if text begins with {NAME} or {{NAME}}. doubled reports the latter.
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
		return "", false // a brace that stands for itself, then a placeholder
	}
	return inner[:end], doubled
}

// position says, for people, where index i is in text.
func position(text string, i int) string {
	before := text[:i]
	line := strings.Count(before, "\n") + 1
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

// checkJSON fills the placeholders with null, or with nothing inside strings, and checks the
// result. If it is JSON, the result is JSON with all other values, too.
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
		return fmt.Errorf("%s: must be one JSON value: something follows it", position(text, t.origin(text, at)))
	}
	return nil
}

// origin returns the index in text of what is at index at after the placeholders were filled as in
// checkJSON.
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

// body fills the template with values of e.
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
	}
	b := make([]byte, 0, min(size, MaxBytes)) // size is an estimate: an escape is longer than what it stands for
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

// appendValue appends a value of the event, nil if the event does not have it.
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
		return append(b, value[1:len(value)-1]...) // it is escaped already
	case isString:
		var text string
		if json.Unmarshal(value, &text) != nil {
			return b // no event has such a value
		}
		return append(b, text...)
	case f == asString:
		for _, c := range value { // in JSON that is not a string, only these need an escape
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
