package transform

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/cel"

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

// assignment is one entry of Config.Set.
type assignment struct {
	key, header string
	program     cel.Program
}

// New compiles cfg. rules are the rules for destinations that hold values of messages. The error
// holds every fault with its path in cfg; those of expressions have the compiler's message.
func New(cfg Config, rules connector.NameRules) (*Transform, error) {
	errs := []error{cfg.Headers.validate()}
	t := &Transform{headers: cfg.Headers}
	var err error
	if t.to, err = parseTemplate(cfg.To, rules); err != nil {
		errs = append(errs, config.Fault("to", "%s, got %q", err, cfg.To))
	}
	if cfg.Filter != "" || len(cfg.Set) > 0 {
		env, err := expression.NewEnv(variables()...)
		if err != nil {
			return nil, fmt.Errorf("making the environment of expressions: %w", err)
		}
		if cfg.Filter != "" {
			if t.filter, err = compileFilter(env, cfg.Filter); err != nil {
				errs = append(errs, config.Fault("filter", "%s", err))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(cfg.Set)) {
			target, header, err := parseSetKey(key)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			program, err := compileSet(env, cfg.Set[key])
			if err != nil {
				errs = append(errs, config.Fault("set."+key, "%s", err))
			}
			t.set = append(t.set, assignment{key: target, header: header, program: program})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t.changes = !t.headers.isZero() || len(t.set) > 0
	return t, nil
}

// Apply filters and changes m and returns its destination; "" is the sink's default. keep is false
// for a message that the filter drops. An error is made by pipeline.Refuse: its reason is "expression"
// if an expression fails on m, "template" if m lacks a value that the destination needs or
// connector.NameRules forbid the value or what it makes of the name. After an error m is unchanged,
// for the dead letter.
//
// If nothing but a fixed destination is configured, Apply does not allocate.
func (t *Transform) Apply(m *message.Message) (to string, keep bool, err error) {
	if t.filter == nil && !t.changes {
		to, err = t.destination(m)
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
	if to, err = t.destination(m); err != nil {
		*m = before
		return "", false, err
	}
	return to, true, nil
}

// Destination returns the destination of all messages; ok is false if it depends on the message.
func (t *Transform) Destination() (to string, ok bool) {
	return t.to.static, len(t.to.parts) == 0
}

func (t *Transform) destination(m *message.Message) (string, error) {
	to, err := t.to.destination(m)
	if err != nil {
		return "", pipeline.Refuse("template", err)
	}
	return to, nil
}

func (t *Transform) passesFilter(v *view) (bool, error) {
	if t.filter == nil {
		return true, nil
	}
	out, err := expression.Evaluate(t.filter, v)
	if err == nil {
		if keep, ok := out.Value().(bool); ok {
			return keep, nil
		}
		err = fmt.Errorf("%w, got %s", errNotBool, out.Type().TypeName())
	}
	return false, pipeline.Refuse("expression", fmt.Errorf("filter: %s", expression.OneLine(err)))
}

// change evaluates all expressions of set before it changes m: each sees the original message.
func (t *Transform) change(m *message.Message, v *view) error {
	var buffer [8][]byte
	results := buffer[:0]
	for i := range t.set {
		out, err := expression.Evaluate(t.set[i].program, v)
		var result []byte
		if err == nil {
			result, err = setResult(out)
		}
		if err != nil {
			return pipeline.Refuse("expression", fmt.Errorf("set.%s: %s", t.set[i].name(), expression.OneLine(err)))
		}
		results = append(results, result)
	}
	if !t.changes {
		return nil
	}
	before := m.Headers
	m.Headers = t.headers.apply(before)
	own := !t.headers.isZero() // apply has made a new list, which may be changed
	for i, s := range t.set {
		switch s.key {
		case "key":
			m.Key, m.OrderingKey = results[i], "" // the new key is what orders
		case "value":
			m.Value = results[i]
		default:
			if !own {
				m.Headers, own = slices.Clone(before), true
			}
			m.Headers = setHeader(m.Headers, s.header, results[i])
		}
	}
	return nil
}

// name returns the key of the assignment in the configuration.
func (s *assignment) name() string {
	if s.header != "" {
		return "header." + s.header
	}
	return s.key
}

// setHeader changes headers in place. The last header of the name, which readers use, gets the
// value; the others are removed. A nil value removes all.
func setHeader(headers []message.Header, name string, value []byte) []message.Header {
	at := len(headers) // index of the header to keep
	if value != nil {
		for at--; at >= 0 && headers[at].Name != name; at-- {
		}
		if at < 0 {
			return append(headers, message.Header{Name: name, Value: value})
		}
		headers[at] = message.Header{Name: name, Value: value}
	}
	kept := headers[:0]
	for i := range headers {
		if i == at || headers[i].Name != name {
			kept = append(kept, headers[i])
		}
	}
	return kept
}
