package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

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
	depth     int // of the data, 1 for a value that is no list or object
	longest   int // how long the longest number of the data is, 0 if all are of usual size
	chain     int // the longest of parts that lead to each other at one value
	tried     int // the most alternatives of one value, each as often as it is tried
	compiling bool
	regexes   map[string]*countedRegexp
	weight    int // of all regular expressions

	steps   int       // given to this validation
	began   time.Time // zero for what is not timed
	clocked int       // how many were left when the clock was looked at
}

func newMeter() *meter {
	return &meter{left: math.MaxInt, compiling: true, regexes: map[string]*countedRegexp{}}
}

// Steps are charged by what the library is known to do. Time is charged, too, for what is not known: a millisecond costs a fiftieth of the steps that it
// usually lasts for, so that two million steps never last for more than 50 s, and a machine that is busy with other things refuses nothing.
const (
	stepsPerMillisecond = 40
	// clockEvery is after how many steps the clock is looked at.
	clockEvery = 1_000
)

func (m *meter) spend(n int) {
	if m.left -= n; m.left < 0 {
		panic(spent{})
	}
	if m.clocked-m.left < clockEvery || m.began.IsZero() {
		return
	}
	m.left = min(m.left, m.steps-int(time.Since(m.began).Milliseconds())*stepsPerMillisecond)
	if m.clocked = m.left; m.left < 0 {
		panic(spent{})
	}
}

// measure runs a validation with so many steps. It returns how many are left, and whether that was enough.
func (m *meter) measure(steps int, validate func()) (left int, enough bool) {
	m.left, m.steps, m.clocked, m.began = steps, steps, steps, time.Now()
	defer func() {
		m.began = time.Time{}
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
	wide := wideClasses(text)
	if wide*wideWeight > mostRegex {
		return nil, fmt.Errorf("the regular expression has more than %d classes or wide ranges of Unicode, with (?i) a range is ten", mostRegex/wideWeight)
	}
	if !m.compiling { // of data: that it can be read is enough
		m.spend(1 + len(text) + wide*wideSteps)
	}
	weight, err := expression.RegexWeight(text)
	if err != nil {
		return nil, err
	}
	if weight > mostRegex {
		return nil, fmt.Errorf("the regular expression has more than %d parts with its repetitions written out", mostRegex)
	}
	if !m.compiling {
		return &countedRegexp{}, nil
	}
	if m.weight += weight + wide*wideWeight; m.weight > mostRegexes {
		return nil, fmt.Errorf("the regular expressions of the schema have more than %d parts with their repetitions written out", mostRegexes)
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	m.regexes[text] = &countedRegexp{Regexp: compiled, meter: m, weight: weight}
	return m.regexes[text], nil
}

// wideWeight and wideSteps are what one of wideClasses is to compile, and to read.
const wideWeight, wideSteps = 250, 5_000

// wideClasses is how many classes of Unicode a regular expression may have. Ranges beyond ASCII are ten each where case may be ignored: there one takes some
// milliseconds to read, with all that is the same in upper and lower case.
func wideClasses(text string) int {
	n := strings.Count(text, `\p`) + strings.Count(text, `\P`)
	if !ignoresCase(text) {
		return n
	}
	for i := 1; i < len(text); i++ {
		if text[i-1] == '-' && (text[i] >= utf8.RuneSelf || strings.HasPrefix(text[i:], `\x{`)) {
			n += 10
		}
	}
	return n
}

// ignoresCase reports whether a regular expression may have flags with an i that is set, as (?i) and (?si-m: have.
func ignoresCase(text string) bool {
	for {
		_, rest, found := strings.Cut(text, "(?")
		if !found {
			return false
		}
		text = strings.TrimLeft(rest, "imsU")
		set := rest[:len(rest)-len(text)]
		if text != "" && strings.IndexByte("-:)", text[0]) >= 0 && strings.Contains(set, "i") {
			return true
		}
	}
}

// look is for the data that is checked next. It reports whether the chain of parts that lead to each other is not too long for it.
func (m *meter) look(value any) bool {
	m.depth, m.longest = depth(value), longest(value)
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
		m.hook(one, known, references{dynamic: dynamic, recursive: heaviest}, h)
	}
}

// references are what the heaviest part costs that a dynamic and a recursive reference may lead to: one with an anchor, and any. The target is looked for in
// the chain of parts that led to the value and to each one around it.
type references struct{ dynamic, recursive int }

// lookups of a reference's target are one step.
const lookups = 32

// hook puts the counting where the library asks for the format of a value.
func (m *meter) hook(s *jsonschema.Schema, known costs, looked references, h *shape) {
	if s.Bool != nil {
		return
	}
	beside, composed := 1, 0 // of parts that are held against the same value
	for _, one := range partsBeside(s) {
		beside += known.early(one)
		composed += known.composed(one)
	}
	around := 0 // the chain of each value around it
	if s.DynamicRef != nil {
		beside += looked.dynamic
		composed += looked.dynamic
		around = m.chain
	}
	if s.RecursiveRef != nil && s.RecursiveRef.RecursiveAnchor {
		beside += looked.recursive
		composed += looked.recursive
		around = m.chain
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
		if m.longest > 0 {
			m.spend(m.longBelow(v, beside+number, composed))
		}
		switch v := v.(type) {
		case map[string]any:
			m.spend(beside + members.cost(v) + names/4 + copied*len(v)/4)
			if m.longest > 0 {
				m.spend(members.long(m, v))
			}
		case []any:
			m.spend(beside + elements.cost(len(v)) + copied*len(v)/4)
			if m.longest > 0 {
				m.spend(elements.long(m, v))
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

// costs are those that have been found: all that lead to a part ask for them.
type costs map[*jsonschema.Schema]heavy

// early is what a part costs that is over before its format is asked for: by its type, its const or its enum.
func (known costs) early(s *jsonschema.Schema) int { return known.of(s).all }

// composed is what that is of comparisons with lists and objects.
func (known costs) composed(s *jsonschema.Schema) int { return known.of(s).composed }

func (known costs) of(s *jsonschema.Schema) heavy {
	if h := known[s]; h.all > 0 {
		return h
	}
	var values []any
	if s.Const != nil {
		values = append(values, *s.Const)
	}
	if s.Enum != nil {
		values = append(values, s.Enum.Values...)
	}
	h := heavy{}
	for _, v := range values {
		n := comparison(v)
		h.all += n
		if composed(v) {
			h.composed += n
		}
	}
	known[s] = heavy{1 + h.all/comparisons, h.composed / comparisons}
	return known[s]
}

// comparisons of texts are one step.
const comparisons = 16

// comparedBytes of a text are a comparison more.
const comparedBytes = 1_024

// comparison is what it costs to compare a value with one of a schema, all the way down. Numbers are made fractions first.
func comparison(v any) int {
	switch v := v.(type) {
	case string:
		return 1 + len(v)/comparedBytes
	case json.Number:
		return numberSteps * comparisons * (1 + long(v))
	case map[string]any:
		n := 1
		for name, one := range v {
			n += len(name)/comparedBytes + comparison(one)
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
const numberSteps, multipleSteps = 2, 6
