package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/aviaryhq/aviary/internal/expression"
)

// The library validates until it is done, and that may be never: alternatives that lead to themselves double the time with each depth of the data. It asks
// for the format of each value that it holds against a part of a schema, before it goes on to what is below. There steps are counted (meter).
const (
	// MostSteps bounds the check of one event. It is half a second to two.
	MostSteps = 2_000_000
	// mostParts is how many objects a schema may have: the time that compiling takes grows with their square, half a second for so many.
	mostParts = 2_000
	// mostBooleans bounds what may be a part besides: it is compiled fast, but found by a search through all.
	mostBooleans = 8_000
	// mostPaths bounds the JSON Pointers of all these, in bytes: compiling has each of them several times, and compares each with the others.
	mostPaths = 4 << 20
	// mostNested is how deep objects and lists of a schema may be nested: compiling copies the path to each of them.
	mostNested = 128
	// mostRegex bounds each regular expression of a schema, with its repetitions written out, and mostRegexes all of them: what they take in memory.
	mostRegex, mostRegexes = 20_000, 200_000
)

// ErrTooMuchWork says that the data of an event would take too long to check. It may be valid or not.
var ErrTooMuchWork = errors.New("it has too many values for so many alternatives, or alternatives that lead to themselves")

// spent is what ends a validation from within.
type spent struct{}

// meter counts the steps of one validation at a time.
type meter struct {
	left      int
	depth     int  // of the data, 1 for a value that is no list or object
	long      bool // the data has numbers that take longer than usual
	chain     int  // the longest of parts that lead to each other at one value
	tried     int  // the most alternatives of one value, each as often as it is tried
	compiling bool
	regexes   map[string]*countedRegexp
	weight    int // of all regular expressions
}

func newMeter() *meter {
	return &meter{left: math.MaxInt, compiling: true, regexes: map[string]*countedRegexp{}}
}

func (m *meter) spend(n int) {
	if m.left -= n; m.left < 0 {
		panic(spent{})
	}
}

// measure runs a validation with so many steps. It returns how many are left, and whether that was enough.
func (m *meter) measure(steps int, validate func()) (left int, enough bool) {
	m.left = steps
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(spent); !ok {
				panic(v)
			}
			left, enough = 0, false
		}
	}()
	validate()
	return m.left, true
}

// countedRegexp is a regular expression whose search costs steps.
type countedRegexp struct {
	*regexp.Regexp
	meter  *meter
	weight int
}

func (r *countedRegexp) MatchString(text string) bool {
	r.meter.spend(1 + len(text)*(8+r.weight)/32)
	return r.Regexp.MatchString(text)
}

// regexpEngine compiles regular expressions of a schema, and checks those of data, where a schema says that a text is one.
func (m *meter) regexpEngine(text string) (jsonschema.Regexp, error) {
	if known := m.regexes[text]; known != nil {
		return known, nil
	}
	if len(text) > mostRegex {
		return nil, fmt.Errorf("the regular expression has more than %d bytes", mostRegex)
	}
	weight, err := expression.RegexWeight(text)
	if err != nil {
		return nil, err
	}
	if weight > mostRegex {
		return nil, fmt.Errorf("the regular expression has more than %d parts with its repetitions written out", mostRegex)
	}
	if !m.compiling { // of data: that it can be read is enough
		m.spend(1 + len(text))
		return &countedRegexp{}, nil
	}
	if m.weight += weight; m.weight > mostRegexes {
		return nil, fmt.Errorf("the regular expressions of the schema have more than %d parts with their repetitions written out", mostRegexes)
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	m.regexes[text] = &countedRegexp{Regexp: compiled, meter: m, weight: weight}
	return m.regexes[text], nil
}

// look is for the data that is checked next. It reports whether the chain of parts that lead to each other is not too long for it.
func (m *meter) look(value any) bool {
	m.depth, m.long = depth(value), longIn(value) > 0
	return m.depth*m.chain <= mostScopes
}

// circle is what it costs to find that a part leads to itself.
func (m *meter) circle() int {
	scopes := m.depth * m.chain
	return scopes/4 + scopes*scopes/2_000
}

// attach has each part of a compiled schema, and of those that its dynamic references may lead to, count its steps.
func (m *meter) attach(s *jsonschema.Schema, anchored []*jsonschema.Schema) {
	known := costs{}
	dynamic := 0
	for _, one := range anchored {
		dynamic = max(dynamic, known.early(one))
	}
	var all []*jsonschema.Schema
	heaviest := 0
	seen := map[*jsonschema.Schema]bool{}
	for _, one := range append([]*jsonschema.Schema{s}, anchored...) {
		eachPart(one, seen, func(s *jsonschema.Schema) {
			all = append(all, s)
			heaviest = max(heaviest, known.early(s))
		})
	}
	h := shapeOf(all, anchored)
	m.chain, m.tried = max(m.chain, h.chain), max(m.tried, h.most())
	for _, one := range all {
		m.hook(one, known, references{dynamic: dynamic, recursive: heaviest, parts: len(all)}, h)
	}
}

// references are what the heaviest part costs that a dynamic and a recursive reference may lead to: one with an anchor, and any. The target is looked for in
// all parts that the value and each one around it are held against: parts is how many there may be of one value.
type references struct{ dynamic, recursive, parts int }

// lookups of a reference's target are one step.
const lookups = 32

// hook puts the counting where the library asks for the format of a value.
func (m *meter) hook(s *jsonschema.Schema, known costs, looked references, h *shape) {
	if s.Bool != nil {
		return
	}
	beside, parts := 1, 1 // of parts that are held against the same value
	for _, one := range partsBeside(s) {
		beside += known.early(one)
		parts++
	}
	around := 0 // parts of each value around it
	if s.DynamicRef != nil {
		beside += looked.dynamic
		parts++
		around = looked.parts
	}
	if s.RecursiveRef != nil && s.RecursiveRef.RecursiveAnchor {
		beside += looked.recursive
		parts++
		around = looked.parts
	}
	s.PatternProperties = m.patternsOf(s, known)
	names := requiredNames(s)
	members, elements := known.membersOf(s), known.elementsOf(s)
	number := 0
	if s.Minimum != nil || s.Maximum != nil || s.ExclusiveMinimum != nil || s.ExclusiveMaximum != nil {
		number = numberSteps * (1 + longOf(s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum))
	}
	if s.MultipleOf != nil {
		number += multipleSteps * (1 + longOf(s.MultipleOf))
	}
	circles, copied := h.returns(s), h.copied(s)
	inner := s.Format
	s.Format = &jsonschema.Format{Validate: func(v any) error {
		m.spend(around * m.depth / lookups)
		if circles > 0 {
			m.spend(circles * m.circle())
		}
		if m.long {
			m.spend(longBelow(v, beside+number, beside-parts))
		}
		switch v := v.(type) {
		case map[string]any:
			m.spend(beside + members.cost(v) + names/4 + copied*len(v)/4)
			if m.long {
				m.spend(members.long(v))
			}
		case []any:
			m.spend(beside + elements.cost(len(v)) + copied*len(v)/4)
			if m.long {
				m.spend(elements.long(v))
			}
			if s.UniqueItems {
				m.spend(uniqueCost(v))
			}
		case string:
			m.spend(beside + len(v)/256)
		case json.Number:
			m.spend(beside + number)
		default:
			m.spend(beside)
		}
		if inner != nil {
			return inner.Validate(v)
		}
		return nil
	}}
	if inner != nil {
		s.Format.Name = inner.Name
	}
}

// requiredNames is how many names are looked up in each object, or may be: of members that are required, always or where there is another.
func requiredNames(s *jsonschema.Schema) int {
	n := len(s.Required) + len(s.DependentRequired) + len(s.Dependencies)
	for _, names := range s.DependentRequired {
		n += len(names)
	}
	for _, one := range s.Dependencies {
		names, _ := one.([]string)
		n += len(names)
	}
	return n
}

// costs are those that early has found: it is asked for a part by all that lead to it.
type costs map[*jsonschema.Schema]int

// early is what a part costs that is over before its format is asked for: by its type, its const or its enum.
func (known costs) early(s *jsonschema.Schema) int {
	if n := known[s]; n > 0 {
		return n
	}
	n := 0
	if s.Const != nil {
		n = comparison(*s.Const)
	}
	if s.Enum != nil {
		for _, v := range s.Enum.Values {
			n += comparison(v)
		}
	}
	known[s] = 1 + n/comparisons
	return known[s]
}

// comparisons of texts are one step.
const comparisons = 16

// comparison is what it costs to compare a value with one of a schema, all the way down. Numbers are made fractions first.
func comparison(v any) int {
	switch v := v.(type) {
	case json.Number:
		return numberSteps * comparisons * (1 + long(v))
	case map[string]any:
		n := 1
		for _, one := range v {
			n += comparison(one)
		}
		return n
	case []any:
		n := 1
		for _, one := range v {
			n += comparison(one)
		}
		return n
	}
	return 1
}

// What a number costs that is compared, and one that is divided, which may have hundreds of digits.
const numberSteps, multipleSteps = 4, 20
