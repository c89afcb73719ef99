// Package schema checks the data of events against JSON Schemas.
package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// These bound schemas, and the numbers in schemas and data. The library computes with numbers
// exactly: 1e1000000 would take a second.
const (
	// MaxBytes bounds the text of a schema.
	MaxBytes = 256 << 10
	// MaxNumberBytes and MaxExponent bound numbers of schemas and data.
	MaxNumberBytes = 400
	MaxExponent    = 400
)

// Schema is one JSON Schema, by default of draft 2020-12. It is safe for concurrent use.
type Schema struct {
	doc          any
	alternatives int // elements of all its anyOf, oneOf and allOf: each may leave a fault for each value
	tried        int // the most alternatives that are tried on one value; one that several parts lead to counts several times
	chain        int // the longest chain of parts that lead to each other at one value

	idle   chan *checker
	making sync.Mutex
	made   int // guarded by making
}

// mostCheckers bounds the concurrent validations by one schema: each needs its own compiled form,
// in which it counts its steps.
const mostCheckers = 4

// checker is a compiled schema, for one validation at a time.
type checker struct {
	meter    *meter
	compiled *jsonschema.Schema
	// inverse is valid where compiled is not. Below a "not" the library does not keep texts and
	// places of faults, which may be hundreds of times as large as the data.
	inverse *jsonschema.Schema
}

// These bound the data in which Check looks for the first fault: the library keeps each fault with
// its path.
const (
	explainedDepth = 16
	explainedWork  = 4096    // the number of values, times 1 + alternatives
	explainedSteps = 100_000 // each takes some hundred bytes
)

// WorkingBytes is about the most memory that Validate takes for data, which must be valid JSON.
func (s *Schema) WorkingBytes(data []byte) int {
	values, depth := valuesOf(data)
	total := len(data) + values*256 + 128*min(values*max(s.alternatives, s.tried), MostSteps)
	if s.explains(values) {
		total += 512 * values * (1 + s.alternatives)
	}
	return total + scopeBytes*min(depth*s.chain, mostScopes)
}

// valuesOf returns about how many values valid JSON has, and not less: each value but the first
// follows one of three bytes. depth is how deep they are nested.
func valuesOf(data []byte) (n, depth int) {
	n, depth = 1, 1
	open := 1
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', ':':
			n++
		case '[':
			n++
			open++
			depth = max(depth, open)
		case '{':
			open++
			depth = max(depth, open)
		case ']', '}':
			open--
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n, depth
}

func (s *Schema) explains(values int) bool { return values*(1+s.alternatives) <= explainedWork }

// Compile compiles a schema. Its references may lead only to places in it, and to the drafts' own
// schemas: Compile loads nothing from elsewhere.
func Compile(text json.RawMessage) (*Schema, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("a schema has at most %d bytes, this one has %d", MaxBytes, len(text))
	}
	doc, err := decode(text)
	if err != nil {
		return nil, err
	}
	if deeper(doc, mostNested) {
		return nil, fmt.Errorf("a schema is nested %d times at most", mostNested)
	}
	if n := parts(doc); n > mostParts {
		return nil, fmt.Errorf("a schema has at most %d objects, this one has %d", mostParts, n)
	}
	if n := booleans(doc); n > mostBooleans {
		return nil, fmt.Errorf("a schema has at most %d times true or false, this one %d times", mostBooleans, n)
	}
	if paths(doc, 0) > mostPaths {
		return nil, errors.New("the names and identifiers in a schema are too long for so many objects in them")
	}
	if alike(doc, MostSteps) < 0 {
		return nil, errors.New("the lists of a schema have too many elements that are alike")
	}
	if err := checkReferences(doc); err != nil {
		return nil, err
	}
	s := &Schema{doc: doc, alternatives: alternatives(doc), made: 1}
	first, err := s.checker()
	if err != nil {
		return nil, explain(err)
	}
	s.tried, s.chain = first.meter.tried, first.meter.chain
	s.idle = make(chan *checker, min(mostCheckers, runtime.GOMAXPROCS(0)))
	s.idle <- first
	return s, nil
}

// checker makes another checker.
func (s *Schema) checker() (c *checker, err error) {
	c = &checker{meter: newMeter()}
	compiled, err := compile(s.doc, location, c.meter)
	if err != nil {
		return nil, err
	}
	inverse, err := compile(s.doc, inverseLocation, c.meter)
	if err != nil {
		return nil, err
	}
	c.compiled, c.inverse = compiled.schema, inverse.schema
	if s.alternatives > 0 {
		twice, err := compile(s.doc, twiceLocation, c.meter)
		if err != nil {
			return nil, err
		}
		f := newForgetter(twice.schema)
		for _, one := range append(inverse.anchored, c.inverse) {
			f.visit(one)
		}
	}
	c.meter.attach(c.compiled, compiled.anchored)
	c.meter.attach(c.inverse, inverse.anchored)
	c.meter.compiling = false
	return c, nil
}

// take returns a checker that is not in use. It makes a new one if there may be more, and otherwise
// waits until ctx ends.
func (s *Schema) take(ctx context.Context) (*checker, error) {
	select {
	case c := <-s.idle:
		return c, nil
	default:
	}
	s.making.Lock()
	if s.made < cap(s.idle) {
		if c, err := s.checker(); err == nil { // it compiles as the first one did
			s.made++
			s.making.Unlock()
			return c, nil
		}
	}
	s.making.Unlock()
	select {
	case c := <-s.idle:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// parts counts the objects in a schema.
func parts(doc any) (n int) {
	switch v := doc.(type) {
	case map[string]any:
		n = 1
		for _, value := range v {
			n += parts(value)
		}
	case []any:
		for _, value := range v {
			n += parts(value)
		}
	}
	return n
}

// booleans counts true and false in a schema: each may be a subschema.
func booleans(doc any) (n int) {
	switch v := doc.(type) {
	case bool:
		n = 1
	case map[string]any:
		for _, value := range v {
			n += booleans(value)
		}
	case []any:
		for _, value := range v {
			n += booleans(value)
		}
	}
	return n
}

// alike subtracts from left the cost to look for equal elements in the lists whose elements must
// differ by the drafts' own schemas. It stops below zero.
func alike(doc any, left int) int {
	switch v := doc.(type) {
	case map[string]any:
		for key, value := range v {
			switch key {
			case "required", "type", "enum":
				left = alikeIn(value, left)
			case "dependencies", "dependentRequired":
				lists, _ := value.(map[string]any)
				for _, list := range lists {
					left = alikeIn(list, left)
				}
			}
			if left = alike(value, left); left < 0 {
				return left
			}
		}
	case []any:
		for _, value := range v {
			if left = alike(value, left); left < 0 {
				return left
			}
		}
	}
	return left
}

func alikeIn(value any, left int) int {
	if list, ok := value.([]any); ok && left >= 0 {
		return left - uniqueCost(list)
	}
	return left
}

// paths adds up the lengths of the JSON Pointers of all objects and booleans in a schema, each with
// the identifiers before it. at is the length for doc.
func paths(doc any, at int) (n int) {
	switch v := doc.(type) {
	case bool:
		n = at
	case map[string]any:
		for _, name := range [...]string{"$id", "id"} {
			id, _ := v[name].(string)
			at += len(id)
		}
		n = at
		for key, value := range v {
			n += paths(value, at+1+len(key))
		}
	case []any:
		for i, value := range v {
			n += paths(value, at+1+len(strconv.Itoa(i)))
		}
	}
	return n
}

// compiled is the schema at a location, and the parts that only dynamic references may lead to: no
// other part names these.
type compiled struct {
	schema   *jsonschema.Schema
	anchored []*jsonschema.Schema
}

// compile compiles the schema at one of the locations. Two results share nothing but the regular
// expressions.
func compile(doc any, at string, m *meter) (made compiled, err error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	c.UseRegexpEngine(m.regexpEngine)
	for location, doc := range map[string]any{
		location:        doc,
		inverseLocation: map[string]any{"not": map[string]any{"$ref": location}},
		twiceLocation:   map[string]any{"not": map[string]any{"not": map[string]any{}}},
	} {
		if err := c.AddResource(location, doc); err != nil {
			return made, err
		}
	}
	if made.schema, err = c.Compile(at); err != nil || at == twiceLocation {
		return made, err
	}
	wasted := 0
	for _, a := range dynamicAnchors(doc, nil, nil) {
		// Parts of the schema are compiled already, and this finds them. A place that is not a
		// schema is refused, and is tried again with each place around it.
		one, err := c.Compile(location + "#" + url.PathEscape(a.pointer))
		if err == nil {
			made.anchored = append(made.anchored, one)
		} else if wasted += a.parts; wasted > mostParts {
			return made, errors.New("there are too many $dynamicAnchor outside of schemas")
		}
	}
	return made, nil
}

// anchor is the JSON Pointer of an object with a $dynamicAnchor, which may be a schema, and how
// many objects it has.
type anchor struct {
	pointer string
	parts   int
}

// dynamicAnchors appends the objects with a $dynamicAnchor, which may be schemas.
func dynamicAnchors(doc any, at []string, found []anchor) []anchor {
	switch v := doc.(type) {
	case map[string]any:
		if _, ok := v["$dynamicAnchor"].(string); ok {
			found = append(found, anchor{pointerOf(at), parts(v)})
		}
		for key, value := range v {
			found = dynamicAnchors(value, append(at, key), found)
		}
	case []any:
		for i, value := range v {
			found = dynamicAnchors(value, append(at, strconv.Itoa(i)), found)
		}
	}
	return found
}

// The library knows a schema, its inverse, and two nots by these URLs.
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

// Validate is Check with as many steps as one event may take.
func (s *Schema) Validate(data []byte) error {
	steps := MostSteps
	return s.Check(context.Background(), data, &steps)
}

// Check returns nil if data, which must be valid JSON, matches the schema. If not, the error is an
// [*Error]. For data that is nested deeper than 16, or has thousands of values (hundreds, if the
// schema has dozens of alternatives), it does not say where the fault is. If the check needs more
// than steps, or more than MostSteps, the error is ErrTooMuchWork. Check subtracts from steps what
// it has used. It waits while too many validations run; if ctx ends before, it returns the error of
// ctx.
func (s *Schema) Check(ctx context.Context, data []byte, steps *int) error {
	value, err := decode(data)
	if err != nil {
		return &Error{Text: err.Error()}
	}
	c, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer func() { s.idle <- c }()
	invalid := false
	if !c.meter.look(value) {
		return ErrTooMuchWork
	}
	most := min(*steps, MostSteps)
	left, enough := c.meter.measure(most, func() { invalid = c.inverse.Validate(value) == nil })
	*steps -= most - left
	if !enough {
		return ErrTooMuchWork
	}
	if !invalid {
		return nil
	}
	if values, _ := valuesOf(data); s.explains(values) && !deeper(value, explainedDepth) {
		var fault error
		before := min(left, explainedSteps)
		left, enough = c.meter.measure(before, func() { fault = c.compiled.Validate(value) })
		*steps -= before - left
		if fault != nil && enough {
			return explain(fault)
		}
	}
	return &Error{Text: "it is not valid, and too large to say where"}
}

// depth returns how deep lists and objects are nested in value: 1 if it contains no value.
func depth(value any) int {
	inner := 0
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			inner = max(inner, depth(element))
		}
	case map[string]any:
		for _, element := range v {
			inner = max(inner, depth(element))
		}
	}
	return 1 + inner
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

// explain returns the first cause of an error.
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
	e := &Error{Pointer: cut(out.InstanceLocation), Text: "does not match the schema"}
	if out.Error != nil {
		e.Text = out.Error.String()
		if format, ok := wrong.ErrorKind.(*kind.Format); ok && cut(e.Text) != e.Text { // the value would leave no room for the reason
			e.Text = fmt.Sprintf("is not valid %s: %v", format.Want, format.Err)
		}
		e.Text = cut(e.Text)
	}
	return e
}

// cut bounds a text, which may repeat values of the data.
func cut(text string) string { return truncate.Text(text, 200) }

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
