// Package schema checks the data of events against JSON Schemas.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/aviaryhq/aviary/internal/door"
)

// Bounds of schemas and of numbers that are checked by one. The library computes with numbers exactly: 1e1000000 would take a second.
const (
	// MaxBytes is the largest schema.
	MaxBytes = 256 << 10
	// MaxNumberBytes and MaxExponent bound numbers of schemas and data.
	MaxNumberBytes = 400
	MaxExponent    = 400
)

// Schema is one JSON Schema, by default of draft 2020-12. It is safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
	// inverse is valid where compiled is not. Below a "not" the library keeps no texts and places of what is wrong, which may be hundreds of times as
	// large as the data.
	inverse      *jsonschema.Schema
	alternatives int // of all its anyOf, oneOf and allOf: each may leave a fault of each value
}

// Bounds of data whose first fault is looked for: the library keeps each fault with its path.
const (
	explainedDepth = 16
	explainedWork  = 4096 // values times what may be wrong with each
)

// WorkingBytes is about the most that Validate takes for data, which is valid JSON.
func (s *Schema) WorkingBytes(data []byte) int {
	values := valuesOf(data)
	total := len(data) + values*(256+96*s.alternatives)
	if s.explains(values) {
		total += 512 * values * (1 + s.alternatives)
	}
	return total
}

// valuesOf is about how many values valid JSON has, and not less: each but the first is behind one of three bytes.
func valuesOf(data []byte) int {
	n := 1
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '[', ',', ':':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}

func (s *Schema) explains(values int) bool { return values*(1+s.alternatives) <= explainedWork }

// Compile reads a schema. References may lead to places in it only, and to the drafts' own schemas: nothing is loaded from elsewhere.
func Compile(text json.RawMessage) (*Schema, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("a schema has at most %d bytes, this one has %d", MaxBytes, len(text))
	}
	doc, err := decode(text)
	if err != nil {
		return nil, err
	}
	s := &Schema{alternatives: alternatives(doc)}
	if s.compiled, err = compile(doc, location); err != nil {
		return nil, explain(err)
	}
	if s.inverse, err = compile(doc, inverseLocation); err != nil {
		return nil, explain(err)
	}
	if s.alternatives > 0 {
		twice, err := compile(doc, twiceLocation)
		if err != nil {
			return nil, explain(err)
		}
		newForgetter(twice).visit(s.inverse)
	}
	return s, nil
}

// compile returns what stands at one of the locations, with nothing in common with what it returns otherwise.
func compile(doc any, at string) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	for location, doc := range map[string]any{
		location:        doc,
		inverseLocation: map[string]any{"not": map[string]any{"$ref": location}},
		twiceLocation:   map[string]any{"not": map[string]any{"not": map[string]any{}}},
	} {
		if err := c.AddResource(location, doc); err != nil {
			return nil, err
		}
	}
	return c.Compile(at)
}

// The names of a schema, of its inverse and of two nots in the library's eyes.
const (
	location        = "aviary:///schema"
	inverseLocation = "aviary:///inverse"
	twiceLocation   = "aviary:///twice"
)

// alternatives counts the elements of anyOf, oneOf and allOf anywhere in a schema.
func alternatives(doc any) (n int) {
	switch v := doc.(type) {
	case map[string]any:
		for key, value := range v {
			if list, ok := value.([]any); ok && (key == "anyOf" || key == "oneOf" || key == "allOf") {
				n += len(list)
			}
			n += alternatives(value)
		}
	case []any:
		for _, value := range v {
			n += alternatives(value)
		}
	}
	return n
}

// nowhere is a loader that loads nothing.
type nowhere struct{}

var errRemote = errors.New("a schema cannot refer to another document")

// Load refuses.
func (nowhere) Load(string) (any, error) { return nil, errRemote }

// Error says where data is not as the schema has it.
type Error struct {
	// Pointer is the JSON Pointer (RFC 6901) of the first place that is wrong, empty for the data as a whole.
	Pointer string
	// Text is one sentence without a full stop.
	Text string
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return e.Text
	}
	return e.Pointer + ": " + e.Text
}

// Validate returns nil for data that is valid. data is valid JSON. The error is an [*Error]; of data nested deeper than 16, or with thousands of values (hundreds,
// where the schema has dozens of alternatives), it does not say where the fault is.
func (s *Schema) Validate(data []byte) error {
	value, err := decode(data)
	if err != nil {
		return &Error{Text: err.Error()}
	}
	if invalid := s.inverse.Validate(value) == nil; !invalid {
		return nil
	}
	if s.explains(valuesOf(data)) && !deeper(value, explainedDepth) {
		if err := s.compiled.Validate(value); err != nil {
			return explain(err)
		}
	}
	return &Error{Text: "it is not valid, and too large to say where"}
}

// deeper reports whether lists and objects are nested deeper than depth.
func deeper(value any, depth int) bool {
	switch v := value.(type) {
	case []any:
		if depth == 0 {
			return true
		}
		for _, element := range v {
			if deeper(element, depth-1) {
				return true
			}
		}
	case map[string]any:
		if depth == 0 {
			return true
		}
		for _, element := range v {
			if deeper(element, depth-1) {
				return true
			}
		}
	}
	return false
}

// explain is the first of an error's causes.
func explain(err error) error {
	var meta *jsonschema.SchemaValidationError
	if errors.As(err, &meta) {
		err = meta.Err
	}
	var wrong *jsonschema.ValidationError
	if !errors.As(err, &wrong) {
		return &Error{Text: cut(err.Error())}
	}
	for len(wrong.Causes) > 0 {
		wrong = wrong.Causes[0]
	}
	out := wrong.BasicOutput()
	e := &Error{Pointer: cut(out.InstanceLocation), Text: "is not as the schema has it"}
	if out.Error != nil {
		e.Text = cut(out.Error.String())
	}
	return e
}

// cut bounds a text, which may repeat values of the data.
func cut(text string) string { return door.Cut(text, 200) }

// decode reads JSON with numbers as they are written, within the bounds.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if d.InputOffset() < int64(len(bytes.TrimRight(text, " \t\r\n"))) {
		return nil, errors.New("not JSON: something follows the value")
	}
	return value, checkNumbers(value)
}

func checkNumbers(value any) error {
	switch v := value.(type) {
	case json.Number:
		_, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
		n, err := strconv.Atoi(exponent)
		if len(v) > MaxNumberBytes || exponent != "" && (err != nil || n < -MaxExponent || n > MaxExponent) {
			return fmt.Errorf("a number must have at most %d characters and an exponent from -%d to %d", MaxNumberBytes, MaxExponent, MaxExponent)
		}
	case []any:
		for _, element := range v {
			if err := checkNumbers(element); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, element := range v {
			if err := checkNumbers(element); err != nil {
				return err
			}
		}
	}
	return nil
}
