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

// The library validates until it is done, and that may be never: alternatives that lead to
// themselves double the time with each level of the data. When the library applies a part
// (subschema) to a value, it checks the value's format before it goes on to the values below. A
// meter counts steps in that check.
const (
	// MostSteps bounds the check of one event. So many take half a second to two.
	MostSteps = 2_000_000
	// mostParts bounds the objects in a schema. The time to compile them grows with their square:
	// half a second for so many.
	mostParts = 2_000
	// mostBooleans bounds true and false in a schema, which may be parts, too. They compile fast,
	// but are found by a search through all.
	mostBooleans = 8_000
	// mostPaths bounds the JSON Pointers of all objects and booleans, in bytes: compiling holds
	// each of them several times, and compares each with the others.
	mostPaths = 4 << 20
	// mostNested bounds how deep objects and lists of a schema may be nested: compiling copies the
	// path to each of them.
	mostNested = 128
	// mostRegex bounds each regular expression of a schema, with its repetitions written out.
	// mostRegexes bounds all of them together. They stand for the memory that these take.
	mostRegex, mostRegexes = 20_000, 200_000
)

// ErrTooMuchWork says that the data of an event would take too long to check. The data may be valid
// or not.
var ErrTooMuchWork = errors.New("it has too many values for so many alternatives, or alternatives that refer to themselves")

// spent is the value of the panic that ends a validation from within.
type spent struct{}

// meter counts the steps of one validation at a time.
type meter struct {
	left      int
	depth     int // of the data, 1 for a value that is no list or object
	longest   int // the additional steps of the longest number of the data, 0 if all are of usual size
	chain     int // the longest chain of parts that lead to each other at one value
	tried     int // the most alternatives that are tried on one value
	compiling bool
	regexes   map[string]*countedRegexp
	weight    int // of all regular expressions

	steps   int       // available to this validation
	began   time.Time // zero: the time is not measured
	clocked int       // how many steps were left when the clock was last read
}

func newMeter() *meter {
	return &meter{left: math.MaxInt, compiling: true, regexes: map[string]*countedRegexp{}}
}

// Steps are charged for what the library is known to do. Time is charged, too, for what is not
// known. A millisecond costs a fiftieth of the steps that usually run in it: two million steps
// never last longer than 50 s, and a machine that is busy with other things refuses nothing.
const (
	stepsPerMillisecond = 40
	// clockEvery is after how many steps the clock is read again.
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

// measure runs a validation with that many steps. It returns how many are left, and whether they
// were enough.
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

// countedRegexp is a regular expression that charges steps for a search.
type countedRegexp struct {
	*regexp.Regexp
	meter  *meter
	weight int
}

func (r *countedRegexp) MatchString(text string) bool {
	r.meter.spend(1 + len(text)*(8+r.weight)/32)
	return r.Regexp.MatchString(text)
}

// regexpEngine compiles the regular expressions of a schema. It also checks texts of the data that
// must be regular expressions.
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
	if !m.compiling { // of data: it only has to be valid
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

// wideWeight and wideSteps are the costs of one of wideClasses: to compile it, and to read it.
const wideWeight, wideSteps = 250, 5_000

// wideClasses returns how many classes of Unicode a regular expression may have. If the expression
// may ignore case, a range beyond ASCII counts as ten: it takes some milliseconds to read, with all
// characters that are the same in upper and lower case.
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

// ignoresCase reports whether a regular expression may set the flag i, as (?i) and (?si-m: do.
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

// look prepares the meter for the data that is checked next. It reports whether the chain of parts
// is short enough for data of that depth.
func (m *meter) look(value any) bool {
	m.depth, m.longest = depth(value), longest(value)
	return m.depth*m.chain <= mostScopes
}

// circle is the cost to find that a part leads to itself.
func (m *meter) circle() int {
	scopes := m.depth * m.chain
	return scopes/4 + scopes*scopes/2_000
}

// attach makes the parts of a compiled schema count their steps, and the parts to which its dynamic
// references may lead.
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

// references holds the cost of the heaviest part that a dynamic reference may lead to (one with an
// anchor), and that a recursive reference may lead to (any). The library looks for the target in
// the chain of parts that led to the value and to each value around it.
type references struct{ dynamic, recursive int }

// lookups is how many lookups of a reference's target cost one step.
const lookups = 32

// hook puts the counting where the library checks the format of a value.
func (m *meter) hook(s *jsonschema.Schema, known costs, looked references, h *shape) {
	if s.Bool != nil {
		return
	}
	beside, composed := 1, 0 // of parts that apply to the same value
	for _, one := range partsBeside(s) {
		beside += known.early(one)
		composed += known.composed(one)
	}
	around := 0 // the length of the chain that is searched for each value around it
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

// requiredNames returns how many names the library may look up in each object: of members that are
// required, always or if another one is present.
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

// costs holds the costs that were computed: each part that leads to a part asks for them.
type costs map[*jsonschema.Schema]heavy

// early is the cost of a part whose check ends before the format is checked: by its type, its const
// or its enum.
func (known costs) early(s *jsonschema.Schema) int { return known.of(s).all }

// composed is the share of early that is for comparisons with lists and objects.
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

// comparisons is how many comparisons of texts cost one step.
const comparisons = 16

// comparedBytes is how many bytes of a text cost one more comparison.
const comparedBytes = 1_024

// comparison returns the cost to compare a value with one of a schema, including all values in it.
// Numbers are converted to fractions first.
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

// These are the costs of a number that is compared, and of one that is divided, which may have
// hundreds of digits.
const numberSteps, multipleSteps = 2, 6
