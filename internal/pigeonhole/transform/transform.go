package transform

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/expression"
)

// Transform is a compiled Config. It is safe for concurrent use.
type Transform struct {
	filter  cel.Program // nil: all pass
	headers HeadersConfig
	set     []assignment
	to      *template
	changes bool // headers or set is configured
}

type assignment struct {
	key, header string // of Config.Set, and the NAME in it
	program     cel.Program
}

// New compiles cfg. rules are the rules for destinations that hold values of messages. The error
// holds every fault with its path in cfg; those of expressions have the compiler's message.
func New(cfg Config, rules connector.NameRules) (*Transform, error) {
	var errs []error
	check := func(path string, err error) { errs = append(errs, config.Require(err == nil, path, "%v", err)) }
	t := &Transform{headers: cfg.Headers, changes: !cfg.Headers.isZero() || len(cfg.Set) > 0}
	var err error
	t.to, err = parseTemplate(cfg.To, rules)
	check("to", err)
	var env *cel.Env
	if cfg.Filter != "" || len(cfg.Set) > 0 {
		if env, err = expression.NewEnv(variables()...); err != nil {
			return nil, fmt.Errorf("making the environment of expressions: %w", err)
		}
	}
	if cfg.Filter != "" {
		t.filter, err = expression.Compile(env, cfg.Filter, "true or false", nil, cel.BoolType)
		check("filter", err)
	}
	for _, key := range slices.Sorted(maps.Keys(cfg.Set)) {
		const want = "a string, bytes or null (string(...) makes a string of other types)"
		program, err := expression.Compile(env, cfg.Set[key], want, nil,
			cel.StringType, cel.BytesType, cel.NullType, cel.NullableType(cel.StringType), cel.NullableType(cel.BytesType))
		header, isHeader := strings.CutPrefix(key, "header.")
		switch {
		case !isHeader && key != "key" && key != "value":
			err = fmt.Errorf("must be key, value or header.NAME, got %q", key)
		case header == "":
			err = errors.New("must name a header: header.NAME")
		case message.IsReserved(header):
			err = fmt.Errorf("must not begin with %s, which is reserved for Pigeonhole", message.Prefix)
		}
		check("set."+key, err)
		t.set = append(t.set, assignment{key, header, program})
	}
	return t, errors.Join(errs...)
}

// Apply filters and changes m and returns its destination; "" is the sink's default. keep is false
// for a message that the filter drops. An error is made by pipeline.Refuse, with the reason
// "expression" or "template". Then m is unchanged, for the dead letter. If nothing but a fixed
// destination is configured, Apply does not allocate.
func (t *Transform) Apply(m *message.Message) (to string, keep bool, err error) {
	if t.filter == nil && !t.changes {
		to, err = t.to.destination(m)
		return to, err == nil, err
	}
	var v *view
	if t.filter != nil || len(t.set) > 0 {
		v = &view{m: m}
	}
	if keep, err := t.passesFilter(v); err != nil || !keep {
		return "", false, err
	}
	before := *m // change never modifies its lists in place
	if err := t.change(m, v); err != nil {
		return "", false, err
	}
	if to, err = t.to.destination(m); err != nil {
		*m = before
		return "", false, err
	}
	return to, true, nil
}

// Destination returns the destination of all messages; ok is false if it depends on the message.
func (t *Transform) Destination() (to string, ok bool) { return t.to.static, t.to.fixed }

func (t *Transform) passesFilter(v *view) (bool, error) {
	if t.filter == nil {
		return true, nil
	}
	out, err := expression.Evaluate(t.filter, v)
	if err != nil {
		return false, failed("filter", err)
	}
	if keep, ok := out.Value().(bool); ok {
		return keep, nil
	}
	return false, failed("filter", fmt.Errorf("the result must be true or false, got %s", out.Type().TypeName()))
}

// failed makes the error of a message on which the expression under key fails.
func failed(key string, err error) error {
	return pipeline.Refuse("expression", fmt.Errorf("%s: %s", key, expression.OneLine(err)))
}

// change evaluates all expressions of set before it changes m: each sees the original message.
func (t *Transform) change(m *message.Message, v *view) error {
	var buffer [8][]byte
	results := buffer[:0]
	for i := range t.set {
		result, err := evaluate(t.set[i].program, v)
		if err != nil {
			return failed("set."+t.set[i].key, err)
		}
		results = append(results, result)
	}
	m.Headers = t.headers.apply(m.Headers)
	own := !t.headers.isZero() // apply has made a new list, which may be changed
	for i, s := range t.set {
		switch s.key {
		case "key":
			m.Key, m.OrderingKey = results[i], "" // the new key is what orders
		case "value":
			m.Value = results[i]
		default:
			if !own {
				m.Headers, own = slices.Clone(m.Headers), true
			}
			m.Headers = setHeader(m.Headers, s.header, results[i])
		}
	}
	return nil
}

// evaluate returns the result of an expression of Set; nil is null.
func evaluate(program cel.Program, v *view) ([]byte, error) {
	out, err := expression.Evaluate(program, v)
	if err != nil {
		return nil, err
	}
	switch out := out.(type) {
	case types.String:
		return []byte(out), nil
	case types.Bytes:
		if out == nil {
			return []byte{}, nil
		}
		return out, nil
	case types.Null:
		return nil, nil
	}
	return nil, fmt.Errorf("the result must be a string, bytes or null, got %s", out.Type().TypeName())
}

// setHeader changes headers in place. The last header of the name gets the value; the others are
// removed, and with a nil value all.
func setHeader(headers []message.Header, name string, value []byte) []message.Header {
	left, at := headers[:0], len(headers)
	for _, h := range headers {
		if h.Name == name {
			at = len(left)
		} else {
			left = append(left, h)
		}
	}
	if value == nil {
		return left
	}
	return slices.Insert(left, at, message.Header{Name: name, Value: value})
}
