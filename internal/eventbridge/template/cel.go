package template

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/expression"
)

const (
	// maxCost bounds one evaluation, in CEL's cost units: see package expression. An evaluation
	// reaches it in less than 100 ms of one core. There is no bound in time: on a busy machine it
	// would refuse events that are fine.
	maxCost = 100_000
	// maxValues bounds the values of an event, including inner ones: a value takes up to 150 bytes
	// when it is decoded for CEL, and as few as 2 in the event.
	maxValues = 100_000
	// maxResultDepth bounds how deep a result may be nested.
	maxResultDepth = 128
)

// program is a compiled expression over the variable event, which is the event as JSON: event.type,
// event.data.order.
type program struct {
	run    cel.Program
	asJSON bool
}

func compileCEL(source string, asJSON bool) (*program, error) {
	env, err := expression.NewEnv(cel.Variable("event", cel.DynType))
	if err != nil {
		return nil, fmt.Errorf("making the environment of expressions: %w", err)
	}
	want, wanted := "any value", []*cel.Type(nil)
	if !asJSON {
		want, wanted = "a string or bytes where content_type is not JSON", []*cel.Type{cel.StringType, cel.BytesType}
	}
	options := []cel.ProgramOption{cel.CostLimit(maxCost)}
	run, err := expression.Compile(env, source, want, options, wanted...)
	if err != nil {
		return nil, err
	}
	return &program{run: run, asJSON: asJSON}, nil
}

// body evaluates the expression on e.
func (p *program) body(e event.Event) ([]byte, error) {
	if n := countValues(e.JSON); n > maxValues {
		return nil, fmt.Errorf("the event has %d values, cel takes %d at most", n, maxValues)
	}
	defer turn()()
	value, err := expression.JSON(e.JSON)
	if err != nil {
		return nil, fmt.Errorf("the event is not JSON: %w", err)
	}
	out, err := expression.Evaluate(p.run, map[string]any{"event": value})
	if err != nil {
		return nil, errors.New(expression.OneLine(err))
	}
	if !p.asJSON {
		return plain(out)
	}
	body, err := appendResult(make([]byte, 0, 512), out, 0)
	if err == nil && len(body) > MaxBytes {
		err = errTooLarge()
	}
	if err != nil {
		return nil, err
	}
	return body, nil
}

// turns has room for as many evaluations as there are processors. More at the same time would not
// be faster, and each holds a decoded event.
//
//nolint:gochecknoglobals // it is about the process: all subscribers' transformations share its processors and its memory
var turns = sync.OnceValue(func() chan struct{} { return make(chan struct{}, runtime.GOMAXPROCS(0)) })

// turn waits until an evaluation may run. The caller calls end after it.
func turn() (end func()) {
	turns() <- struct{}{}
	return func() { <-turns() }
}

// countValues returns how many values a JSON text has. It counts an empty list or object as two.
func countValues(text []byte) int {
	n, inString := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString:
			if c == '\\' {
				i++
			}
			inString = c != '"'
		case c == '"':
			inString = true
		case c == ',' || c == '[' || c == '{':
			n++
		}
	}
	return n
}

// plain returns a result for a content type that is not JSON.
func plain(out ref.Val) ([]byte, error) {
	var body []byte
	switch out := out.(type) {
	case types.String:
		body = []byte(out)
	case types.Bytes:
		body = append([]byte{}, out...)
	default:
		return nil, fmt.Errorf("the result must be a string or bytes where content_type is not JSON, got %s", out.Type().TypeName())
	}
	if len(body) > MaxBytes {
		return nil, errTooLarge()
	}
	return body, nil
}

// appendResult appends a result as JSON: bytes in base64, times by RFC 3339, durations as 1.5s,
// maps sorted by their keys as text.
func appendResult(b []byte, out ref.Val, depth int) ([]byte, error) {
	if len(b) > MaxBytes {
		return nil, errTooLarge()
	}
	if depth > maxResultDepth {
		return nil, fmt.Errorf("the result is nested more than %d deep", maxResultDepth)
	}
	switch v := out.(type) {
	case types.Null:
		return append(b, "null"...), nil
	case types.Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case types.Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case types.Double:
		return appendDouble(b, float64(v))
	case types.String:
		return appendString(b, string(v))
	case types.Bytes:
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), v), '"'), nil
	case types.Timestamp:
		return append(v.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"'), nil
	case types.Duration:
		return append(strconv.AppendFloat(append(b, '"'), v.Seconds(), 'f', -1, 64), `s"`...), nil
	case traits.Lister:
		return appendList(b, v, depth)
	case traits.Mapper:
		return appendMap(b, v, depth)
	}
	return nil, fmt.Errorf("the result holds a value of type %s, which is not in JSON", out.Type().TypeName())
}

func appendDouble(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("the result holds a number that is not in JSON")
	}
	text, err := json.Marshal(f)
	return append(b, text...), err
}

func appendString(b []byte, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("the result holds a string that is not UTF-8")
	}
	if strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) < 0 {
		return append(append(append(b, '"'), text...), '"'), nil
	}
	var quoted strings.Builder
	e := json.NewEncoder(&quoted)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return nil, err
	}
	return append(b, strings.TrimSuffix(quoted.String(), "\n")...), nil
}

func appendList(b []byte, list traits.Lister, depth int) (_ []byte, err error) {
	b = append(b, '[')
	for i, it := 0, list.Iterator(); it.HasNext() == types.True; i++ {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendResult(b, it.Next(), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, m traits.Mapper, depth int) (_ []byte, err error) {
	type entry struct {
		name  string
		value ref.Val
	}
	var entries []entry
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		var name string
		switch k := key.(type) {
		case types.String:
			name = string(k)
		case types.Int:
			name = strconv.FormatInt(int64(k), 10)
		case types.Uint:
			name = strconv.FormatUint(uint64(k), 10)
		case types.Bool:
			name = strconv.FormatBool(bool(k))
		default:
			return nil, fmt.Errorf("the result has a map with a key of type %s", key.Type().TypeName())
		}
		value, _ := m.Find(key)
		entries = append(entries, entry{name, value})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	b = append(b, '{')
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
			if entries[i-1].name == e.name {
				return nil, fmt.Errorf("the result has a map with two keys that are %q as text", e.name)
			}
		}
		if b, err = appendString(b, e.name); err != nil {
			return nil, err
		}
		if b, err = appendResult(append(b, ':'), e.value, depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}
