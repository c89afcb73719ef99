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

// WorkingBytes is about the most that Validate takes for data of that size, which has at most values values.
func WorkingBytes(size, values int) int { return size + 256*min(size/2+1, values) }

// Schema is one JSON Schema, by default of draft 2020-12. It is safe for concurrent use.
type Schema struct{ compiled *jsonschema.Schema }

// Compile reads a schema. References may lead to places in it only, and to the drafts' own schemas: nothing is loaded from elsewhere.
func Compile(text json.RawMessage) (*Schema, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("a schema has at most %d bytes, this one has %d", MaxBytes, len(text))
	}
	doc, err := decode(text)
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	if err := c.AddResource(location, doc); err != nil {
		return nil, explain(err)
	}
	compiled, err := c.Compile(location)
	if err != nil {
		return nil, explain(err)
	}
	return &Schema{compiled}, nil
}

// location is the name of a schema in the library's eyes.
const location = "aviary:///schema"

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

// Validate returns nil for data that is valid. data is valid JSON. The error is an [*Error].
func (s *Schema) Validate(data []byte) error {
	value, err := decode(data)
	if err != nil {
		return &Error{Text: err.Error()}
	}
	if err := s.compiled.Validate(value); err != nil {
		return explain(err)
	}
	return nil
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
