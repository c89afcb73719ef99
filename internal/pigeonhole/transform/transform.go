package transform

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/cel"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/expression"
)

// Transform is a compiled Config. It is safe for concurrent use.
type Transform struct {
	filter   cel.Program // nil: all pass
	headers  HeadersConfig
	set      []setting
	to       *template
	changing bool // headers or set have something to do
}

// setting is one entry of Config.Set.
type setting struct {
	key, header string
	program     cel.Program
}

// New compiles cfg. The error has every fault, by its path from cfg, with what CEL says
// of an expression.
func New(cfg Config) (*Transform, error) {
	errs := []error{cfg.Headers.validate()}
	t := &Transform{headers: cfg.Headers}
	var err error
	if t.to, err = parseTemplate(cfg.To); err != nil {
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
			target, header, err := setTarget(key)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			program, err := compileSet(env, cfg.Set[key])
			if err != nil {
				errs = append(errs, config.Fault("set."+key, "%s", err))
			}
			t.set = append(t.set, setting{key: target, header: header, program: program})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t.changing = !t.headers.isZero() || len(t.set) > 0
	return t, nil
}

// Apply filters and changes m and finds its destination, empty for the sink's own. keep
// is false for a message that the filter does not want. An error is made by lane.Refuse:
// with the reason "expression" when an expression fails on m, "template" when m lacks
// what the destination needs; m is then as it came, to be put with the dead letters.
//
// Where nothing is configured Apply does nothing and does not allocate.
func (t *Transform) Apply(m *message.Message) (to string, keep bool, err error) {
	if t.filter == nil && !t.changing {
		to, err = t.destination(m)
		return to, err == nil, err
	}
	var v *view
	if t.filter != nil || len(t.set) > 0 {
		v = &view{m: m}
	}
	if keep, err := t.filtered(v); err != nil || !keep {
		return "", false, err
	}
	before := *m // the lists in it are never changed in place
	if err := t.change(m, v); err != nil {
		return "", false, err
	}
	if to, err = t.destination(m); err != nil {
		*m = before
		return "", false, err
	}
	return to, true, nil
}

// Destination returns the destination of all messages, and false where it depends on
// them.
func (t *Transform) Destination() (to string, ok bool) {
	return t.to.static, len(t.to.parts) == 0
}

func (t *Transform) destination(m *message.Message) (string, error) {
	to, err := t.to.of(m)
	if err != nil {
		return "", lane.Refuse("template", err)
	}
	return to, nil
}

func (t *Transform) filtered(v *view) (bool, error) {
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
	return false, lane.Refuse("expression", fmt.Errorf("filter: %s", expression.OneLine(err)))
}

// change evaluates all of set before it changes anything: each expression sees the
// message as it came.
func (t *Transform) change(m *message.Message, v *view) error {
	var room [8][]byte
	results := room[:0]
	for i := range t.set {
		out, err := expression.Evaluate(t.set[i].program, v)
		var result []byte
		if err == nil {
			result, err = bytesOf(out)
		}
		if err != nil {
			return lane.Refuse("expression", fmt.Errorf("set.%s: %s", t.set[i].name(), expression.OneLine(err)))
		}
		results = append(results, result)
	}
	if !t.changing {
		return nil
	}
	before := m.Headers
	m.Headers = t.headers.apply(before)
	own := !t.headers.isZero() // the list is ours to change
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

// name is the setting's key in the configuration.
func (s *setting) name() string {
	if s.header != "" {
		return "header." + s.header
	}
	return s.key
}

// setHeader changes headers in place: the last of the name gets the value, which is the
// one that readers take, and the others go; nil removes all.
func setHeader(headers []message.Header, name string, value []byte) []message.Header {
	at := len(headers) // of the one to keep
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
