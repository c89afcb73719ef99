// Package schema checks the data of events against JSON Schemas (draft 2020-12 unless $schema
// names another one). It bounds a schema, so that time and memory of a check grow with the size of
// the data only. Of Aviary, it imports only internal/truncate.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// These bound numbers in schemas and data. The library computes with exact fractions: 1e1000000
// would take a second.
const (
	MaxNumberBytes = 400
	MaxExponent    = 400
)

// explainedBytes bounds the data in which Validate looks for the place of a fault: the library keeps
// each fault with its path, which may take hundreds of times as much memory as the data.
const explainedBytes = 32 << 10

// Schema is one JSON Schema. It is safe for concurrent use.
type Schema struct {
	// inverse is {"not": the schema}. Below "not", the library stops at the first fault and does not
	// keep its place.
	inverse *jsonschema.Schema
}

// The library knows a schema and its inverse by these URLs.
const (
	location        = "aviary:///schema"
	inverseLocation = "aviary:///inverse"
)

// Compile compiles a schema. The error says which bound the schema exceeds, or is an [*Error] that
// says what in the schema is wrong.
func Compile(text json.RawMessage) (*Schema, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("a schema has at most %d bytes, this one has %d", MaxBytes, len(text))
	}
	doc, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := prepare(doc); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	c.RegisterVocabulary(&jsonschema.Vocabulary{URL: "aviary:///unique", Compile: compileUnique})
	c.AssertVocabs()
	if err := c.AddResource(location, doc); err != nil {
		return nil, explain(err)
	}
	if err := c.AddResource(inverseLocation, map[string]any{"not": map[string]any{"$ref": location}}); err != nil {
		return nil, err
	}
	inverse, err := c.Compile(inverseLocation)
	if err != nil {
		return nil, explain(err)
	}
	return &Schema{inverse}, nil
}

// nowhere is a loader that loads nothing.
type nowhere struct{}

var errRemote = errors.New("a schema cannot refer to another document")

// Load refuses every URL.
func (nowhere) Load(string) (any, error) { return nil, errRemote }

// Error says where data does not match the schema.
type Error struct {
	// Pointer is the JSON Pointer (RFC 6901) of the first wrong place, empty for the data as a
	// whole.
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

// Validate returns nil if data, which must be valid JSON, matches the schema. If not, the error is
// an [*Error]. For data of more than 32 KiB it does not say where the fault is.
func (s *Schema) Validate(data []byte) error {
	value, err := decode(data)
	if err != nil {
		return &Error{Text: err.Error()}
	}
	if invalid := s.inverse.Validate(value) == nil; !invalid {
		return nil
	}
	if len(data) > explainedBytes {
		return &Error{Text: "it is not valid, and too large to say where"}
	}
	return explain(s.inverse.Not.Validate(value))
}

// WorkingBytes is about the most memory that Validate takes for data.
func WorkingBytes(data []byte) int {
	n := 32 * len(data) // the shortest values, as in [1,2], take the most in relation to their text
	if len(data) <= explainedBytes {
		n += 256 * len(data) // faults with their paths
	}
	return n
}

// explain returns the first cause of an error, nil for nil.
func explain(err error) error {
	if err == nil {
		return nil
	}
	var meta *jsonschema.SchemaValidationError
	if errors.As(err, &meta) {
		err = meta.Err
	}
	var wrong *jsonschema.ValidationError
	if !errors.As(err, &wrong) {
		return &Error{Text: shorten(err.Error())}
	}
	for len(wrong.Causes) > 0 {
		wrong = wrong.Causes[0]
	}
	out := wrong.BasicOutput()
	e := &Error{Pointer: shorten(out.InstanceLocation), Text: "does not match the schema"}
	if out.Error != nil {
		e.Text = out.Error.String()
		if format, ok := wrong.ErrorKind.(*kind.Format); ok && shorten(e.Text) != e.Text { // the value would leave no room for the reason
			e.Text = fmt.Sprintf("is not valid %s: %v", format.Want, format.Err)
		}
		e.Text = shorten(e.Text)
	}
	return e
}

// shorten bounds a text, which may repeat values of the data.
func shorten(text string) string { return truncate.Text(text, 200) }

// decode reads JSON. It keeps numbers as they are written, and checks their bounds.
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
