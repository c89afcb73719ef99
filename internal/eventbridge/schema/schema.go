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
	doc          any
	alternatives int // of all its anyOf, oneOf and allOf: each may leave a fault of each value
	tried        int // the most alternatives of one value, each as often as it is tried: it may stand in several that lead to it
	chain        int // the longest of parts that lead to each other at one value

	idle   chan *checker
	making sync.Mutex
	made   int // under making
}

// mostCheckers is how many validations by one schema run at a time: each needs a compiled form to itself, in which it counts its steps.
const mostCheckers = 4

// checker is a compiled schema, for one validation at a time.
type checker struct {
	meter    *meter
	compiled *jsonschema.Schema
	// inverse is valid where compiled is not. Below a "not" the library keeps no texts and places of what is wrong, which may be hundreds of times as
	// large as the data.
	inverse *jsonschema.Schema
}

// Bounds of data whose first fault is looked for: the library keeps each fault with its path.
const (
	explainedDepth = 16
	explainedWork  = 4096    // values times what may be wrong with each
	explainedSteps = 100_000 // some hundred bytes each
)

// WorkingBytes is about the most that Validate takes for data, which is valid JSON.
func (s *Schema) WorkingBytes(data []byte) int {
	values, depth := valuesOf(data)
	total := len(data) + values*256 + 128*min(values*max(s.alternatives, s.tried), MostSteps)
	if s.explains(values) {
		total += 512 * values * (1 + s.alternatives)
	}
	return total + scopeBytes*min(depth*s.chain, mostScopes)
}

// valuesOf is about how many values valid JSON has, and not less: each but the first is behind one of three bytes. depth is how deep they are nested.
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

// Compile reads a schema. References may lead to places in it only, and to the drafts' own schemas: nothing is loaded from elsewhere.
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

// take returns a checker that nobody uses, a new one where there can be more. It waits until ctx ends.
func (s *Schema) take(ctx context.Context) (*checker, error) {
	select {
	case c := <-s.idle:
		return c, nil
	default:
	}
	s.making.Lock()
	if s.made < cap(s.idle) {
		if c, err := s.checker(); err == nil { // as the first was
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

// booleans counts true and false in a schema, each of which may be a part.
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

// alike takes from left what a look for equal elements of those lists costs that must have none by the drafts' own schemas. It stops below zero.
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

// paths is how long the JSON Pointers of all objects and booleans in a schema are with the identifiers before them, at being that of doc.
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

// compiled is what stands at a location, and the parts that only dynamic references may lead to, which parts of a compiled schema do not name.
type compiled struct {
	schema   *jsonschema.Schema
	anchored []*jsonschema.Schema
}

// compile returns what stands at one of the locations, with nothing in common with what it returns otherwise but the regular expressions.
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
		// Those that are part of the schema are compiled already, and this finds them. What is no schema is refused, and tried again in all that it is in.
		one, err := c.Compile(location + "#" + url.PathEscape(a.pointer))
		if err == nil {
			made.anchored = append(made.anchored, one)
		} else if wasted += a.parts; wasted > mostParts {
			return made, errors.New("$dynamicAnchor stands too often where there is no schema")
		}
	}
	return made, nil
}

// anchor is the JSON Pointer of what may be a schema with a $dynamicAnchor, and how many objects that has.
type anchor struct {
	pointer string
	parts   int
}

// dynamicAnchors appends what may be a schema with a $dynamicAnchor.
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

// Validate is Check with as many steps as one event may take.
func (s *Schema) Validate(data []byte) error {
	steps := MostSteps
	return s.Check(context.Background(), data, &steps)
}

// Check returns nil for data that is valid. data is valid JSON. The error is an [*Error]; of data nested deeper than 16, or with thousands of values (hundreds,
// where the schema has dozens of alternatives), it does not say where the fault is. Or it is ErrTooMuchWork: the check has taken steps, or MostSteps, and is not
// done. What it takes is taken from steps. Some validations run at a time, others wait; the error is ctx' when that ends before.
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

// depth is how deep lists and objects are nested, and what is in them: 1 for any other value.
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
		e.Text = out.Error.String()
		if format, ok := wrong.ErrorKind.(*kind.Format); ok && cut(e.Text) != e.Text { // the value would leave no room for the reason
			e.Text = fmt.Sprintf("is not valid %s: %v", format.Want, format.Err)
		}
		e.Text = cut(e.Text)
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
