package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

const (
	maxTemplate = 64 << 10
	maxPaths    = 100
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
	at   int // where in the template the text begins
	slot int // index in paths
	form form
}

// form is how a value is inserted.
type form byte

const (
	asJSON   form = iota // outside of strings of JSON
	asString             // inside a string of JSON
	asText               // in a text that is not JSON
)

const namePattern, placeholder = `[A-Za-z_][A-Za-z0-9_-]{0,63}`, `\{\{(` + namePattern + `)\}\}|\{(` + namePattern + `)\}`

var (
	names      = regexp.MustCompile(`^` + namePattern + `$`)
	textTokens = regexp.MustCompile(placeholder)
	// jsonTokens finds also what begins and ends a string, and the escapes in strings. No
	// placeholder begins within an escape: a value could end the escape.
	jsonTokens = regexp.MustCompile(placeholder + `|"|(?s:\\u.{4}|\\.)`)
)

func compileTemplate(paths map[string]string, text string, isJSON bool) (t *template, faults model.FaultList) {
	t = &template{}
	slots := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		pointer := "/paths" + model.Step(name)
		path, err := event.ParsePointer(paths[name])
		switch {
		case !names.MatchString(name):
			faults.Add(pointer, "must have a name of letters, digits, _ and -, the first a letter or _, at most 64")
		case err != nil:
			faults.Add(pointer, "%s", err)
		}
		slots[name] = len(t.paths)
		t.paths = append(t.paths, path)
	}
	switch {
	case len(paths) > maxPaths:
		faults.Add("/paths", "must be at most %d, got %d", maxPaths, len(paths))
	case text == "":
		faults.Add("/template", "must be given")
	case len(text) > maxTemplate:
		faults.Add("/template", "must have at most %d bytes, got %d", maxTemplate, len(text))
	case !utf8.ValidString(text):
		faults.Add("/template", "must be UTF-8")
	}
	if len(faults) > 0 {
		return nil, faults
	}
	err := t.parse(text, slots, isJSON)
	if err == nil && isJSON {
		err = t.checkJSON(text)
	}
	if err != nil {
		faults.Add("/template", "%s", err)
	}
	return t, faults
}

// parse finds the placeholders.
func (t *template) parse(text string, slots map[string]int, isJSON bool) error {
	tokens, form := textTokens, asText
	if isJSON {
		tokens, form = jsonTokens, asJSON
	}
	from := 0 // where the text before the next placeholder begins
	for _, m := range tokens.FindAllStringSubmatchIndex(text, -1) {
		begin, end := m[0], m[1]
		switch {
		case m[2] >= 0: // {{NAME}}
			t.parts = append(t.parts,
				part{text: text[from:begin], at: from, slot: -1}, part{text: text[begin+1 : end-1], at: begin + 1, slot: -1})
			from = end
		case m[4] >= 0: // {NAME}
			name := text[m[4]:m[5]]
			slot, known := slots[name]
			if !known {
				return fmt.Errorf("%s: {%s} is not in paths; write {{%s}} for the text itself", position(text, begin), name, name)
			}
			t.parts = append(t.parts, part{text: text[from:begin], at: from, slot: slot, form: form})
			from = end
		case text[begin] == '"' && form == asJSON:
			form = asString
		case text[begin] == '"':
			form = asJSON
		}
	}
	t.parts = append(t.parts, part{text: text[from:], at: from, slot: -1})
	return nil
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
	sample, _ := t.fill(make([][]byte, len(t.paths))) // it is short
	d := json.NewDecoder(bytes.NewReader(sample))
	var v json.RawMessage
	err := d.Decode(&v)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s: is not JSON with values in its placeholders: %w", position(text, t.origin(int(syntax.Offset)-1, text)), err)
	case err != nil:
		return fmt.Errorf("%s: is not JSON with values in its placeholders: it ends too early", position(text, len(text)))
	}
	if rest := bytes.TrimLeft(sample[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fmt.Errorf("%s: must be one JSON value: something follows it", position(text, t.origin(len(sample)-len(rest), text)))
	}
	return nil
}

// origin returns the index in text, the template, of what is at an index of checkJSON's sample.
func (t *template) origin(index int, text string) int {
	for i := range t.parts {
		p := &t.parts[i]
		if index < len(p.text) {
			return p.at + index
		}
		index -= len(p.text)
		if p.slot >= 0 && p.form == asJSON {
			if index < len("null") {
				return p.at + len(p.text)
			}
			index -= len("null")
		}
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

// fill fills the template with values of the paths, nil for those that the event does not have.
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
			return nil, fmt.Errorf("the transformed event has more than %d bytes", MaxBytes)
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
	case f == asString && isString:
		return append(b, value[1:len(value)-1]...) // it is escaped already
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
	case f == asText && isString:
		var text string
		_ = json.Unmarshal(value, &text) // the value is a part of valid JSON
		return append(b, text...)
	}
	return append(b, value...)
}
