package eventpattern

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/number"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// orKey is the key of $or, which is used instead of a field's name.
const orKey = "$or"

// reader parses the text of a pattern, which is valid JSON.
type reader struct {
	json    jsontext.Scanner // of the pattern
	pos     int
	path    []string // keys of the event on the way to the present position
	pointer []string // keys of the pattern on the way to the present position
	depth   int
	inOr    int // number of enclosing $or
	paths   int // total length of the pointers of the fields read so far
	weight  int // weight of the whole pattern after parsing
}

// combination is a choice of one branch of each $or: a list of fields that all must hold.
type combination struct {
	fields       []*field
	alternatives int // of all fields
}

func (r *reader) pattern() ([]conjunction, error) {
	r.blanks()
	if r.peek() != '{' {
		return nil, r.wrong(r.pos, "a pattern is a JSON object")
	}
	branches, err := r.object()
	if err != nil {
		return nil, err
	}
	whole := totalOf(branches)
	r.weight = whole.fields + whole.alternatives
	out := make([]conjunction, len(branches))
	for i, b := range branches {
		out[i] = sortConjunction(slices.Clone(b.fields))
	}
	return out, nil
}

// object reads the fields of an object and returns the combinations of its branches.
func (r *reader) object() ([]combination, error) {
	start := r.pos
	if r.depth++; r.depth > MaxPatternDepth {
		return nil, r.wrong(start, "objects are nested too deep: %d is the limit", MaxPatternDepth)
	}
	defer func() { r.depth-- }()
	all := []combination{{}}
	count := 0
	err := r.members(func(key string, at int) error {
		count++
		parts, err := r.member(key, at)
		if err != nil {
			return err
		}
		all, err = r.combine(all, parts, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	if count == 0 {
		problem := "an empty object matches nothing: name a field"
		if len(r.path) == 0 && r.inOr == 0 {
			problem += `; {"type": [{"exists": true}]} is for every event`
		}
		return nil, r.wrong(start, "%s", problem)
	}
	return all, nil
}

// member reads the value of one key.
func (r *reader) member(key string, at int) ([]combination, error) {
	if key == orKey {
		return r.or()
	}
	r.path = append(r.path, key)
	defer func() { r.path = r.path[:len(r.path)-1] }()
	switch r.peek() {
	case '{':
		return r.object()
	case '[':
		if r.inOr > 0 && reserved(key) {
			return nil, r.wrong(at, "%q is an operator and cannot name a field inside $or", key)
		}
		group, err := r.alternatives()
		if err != nil {
			return nil, err
		}
		pointer := r.where()
		if r.paths += len(pointer); r.paths > MaxPatternPathBytes {
			return nil, r.wrong(at, "the paths of all fields together are too long: %d bytes are the limit", MaxPatternPathBytes)
		}
		f := &field{path: slices.Clone(r.path), pointer: pointer, groups: [][]condition{group}}
		return []combination{{[]*field{f}, alternativesOf(group)}}, nil
	}
	return nil, r.wrong(r.pos, "a field's value is an object or a list of alternatives")
}

// reserved reports whether key is the name of an operator. Inside $or a field of this name is
// probably a mistake: an operator without its field.
func reserved(key string) bool {
	switch key {
	case "prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "cidr", "exists":
		return true
	}
	return false
}

// or reads the branches of $or.
func (r *reader) or() ([]combination, error) {
	start := r.pos
	if r.peek() != '[' {
		return nil, r.wrong(start, "$or is a list of objects")
	}
	r.inOr++
	defer func() { r.inOr-- }()
	var all []combination
	branches := 0
	err := r.elements(func() error {
		if r.peek() != '{' {
			return r.wrong(r.pos, "$or is a list of objects")
		}
		branches++
		branch, err := r.object()
		if err != nil {
			return err
		}
		all = append(all, branch...)
		return r.bounded(len(all), totalOf(all), start)
	})
	if err != nil {
		return nil, err
	}
	if branches < 2 {
		return nil, r.wrong(start, "$or has two branches or more")
	}
	return all, nil
}

// combine joins each combination of all with each one of parts. It checks the bounds before it
// allocates the result.
func (r *reader) combine(all, parts []combination, at int) ([]combination, error) {
	one, two := totalOf(all), totalOf(parts)
	made := total{one.fields*len(parts) + two.fields*len(all), one.alternatives*len(parts) + two.alternatives*len(all)}
	if err := r.bounded(len(all)*len(parts), made, at); err != nil {
		return nil, err
	}
	if len(parts) == 1 {
		for i := range all {
			all[i].fields = append(all[i].fields, parts[0].fields...)
			all[i].alternatives += parts[0].alternatives
		}
		return all, nil
	}
	out := make([]combination, 0, len(all)*len(parts))
	for _, one := range all {
		for _, part := range parts {
			out = append(out, combination{slices.Concat(one.fields, part.fields), one.alternatives + part.alternatives})
		}
	}
	return out, nil
}

// total is the number of fields and alternatives of all combinations together.
type total struct{ fields, alternatives int }

func totalOf(all []combination) (t total) {
	for _, one := range all {
		t.fields += len(one.fields)
		t.alternatives += one.alternatives
	}
	return t
}

// alternativesOf counts the conditions of a list, including those that an anything-but excludes:
// each takes memory in an index.
func alternativesOf(group []condition) int {
	n := len(group)
	for i := range group {
		n += len(group[i].excluded())
	}
	return n
}

func (r *reader) bounded(combinations int, t total, at int) error {
	if combinations > MaxPatternBranches || t.fields > MaxPatternFields || t.alternatives > MaxPatternAlternatives {
		what := "$or makes too many combinations"
		if combinations == 1 {
			what = "there are too many fields or alternatives"
		}
		return r.wrong(at, "%s: %d with %d fields and %d alternatives are the limit", what, MaxPatternBranches, MaxPatternFields, MaxPatternAlternatives)
	}
	return nil
}

// alternatives reads the list of a field.
func (r *reader) alternatives() ([]condition, error) {
	start := r.pos
	var group []condition
	err := r.elements(func() error {
		switch r.peek() {
		case '{':
			return r.operator(&group)
		case '[':
			return r.wrong(r.pos, "an alternative is a string, a number, true, false, null or an object with one operator")
		}
		c, err := r.exact()
		group = append(group, c)
		return err
	})
	if err == nil && len(group) == 0 {
		err = r.wrong(start, "an empty list matches nothing: give an alternative")
	}
	sortLong(group)
	return group, err
}

// exact reads a string, a number or a literal.
func (r *reader) exact() (condition, error) {
	k, text, err := r.scalar()
	return exactly(k, text), err
}

// members calls each for the members of an object: with the key, and the position of the key.
func (r *reader) members(each func(key string, at int) error) error {
	seen := map[string]bool{}
	return r.sequence('}', func() error {
		at := r.pos
		key, err := r.text()
		if err != nil {
			return err
		}
		r.pointer = append(r.pointer, key)
		if seen[key] {
			return r.wrong(at, "duplicate key %q", key)
		}
		seen[key] = true
		r.blanks()
		r.pos++ // ':'
		r.blanks()
		return each(key, at)
	})
}

// elements calls each for the elements of an array.
func (r *reader) elements(each func() error) error {
	n := 0
	return r.sequence(']', func() error {
		r.pointer = append(r.pointer, strconv.Itoa(n))
		n++
		return each()
	})
}

// sequence calls each at each member or element, until end. each appends its key or index to
// r.pointer; sequence removes it if each returns no error.
func (r *reader) sequence(end byte, each func() error) error {
	r.pos++ // '{' or '['
	for r.blanks(); r.peek() != end; r.blanks() {
		if r.peek() == ',' {
			r.pos++
			r.blanks()
		}
		if err := each(); err != nil {
			return err
		}
		r.pointer = r.pointer[:len(r.pointer)-1]
	}
	r.pos++
	return nil
}

// scalar reads a string as its text, a number as its key, or a literal.
func (r *reader) scalar() (k kind, text string, err error) {
	start := r.pos
	switch c := r.peek(); c {
	case '"':
		text, err = r.text()
		return kindString, text, err
	case 't', 'f', 'n':
		r.pos = r.json.Literal(start)
		return literalKind(c), "", nil
	}
	r.pos = r.json.Number(start)
	key, ok := number.AppendKey(nil, r.json.Src[start:r.pos])
	if !ok {
		return 0, "", r.wrong(start, "the number's exponent is too long")
	}
	return kindNumber, string(key), nil
}

func (r *reader) text() (string, error) {
	start := r.pos + 1
	end, _ := r.json.String(r.pos)
	if r.json.Fault != "" {
		return "", r.wrong(r.json.At, "the string is not UTF-8")
	}
	r.pos = end
	text, lone := jsontext.AppendDecoded(nil, r.json.Src[start:end-1])
	if lone {
		return "", r.wrong(start, "the string has half a surrogate pair")
	}
	return string(text), nil
}

func (r *reader) blanks() { r.pos = r.json.Space(r.pos) }

func (r *reader) peek() byte { return r.json.Src[r.pos] }

func (r *reader) wrong(at int, format string, args ...any) error {
	return &Error{Offset: at, Pointer: r.where(), Reason: fmt.Sprintf(format, args...)}
}

// where returns the JSON Pointer of the present position.
func (r *reader) where() string {
	var b strings.Builder
	for _, step := range r.pointer {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(step, "~", "~0"), "/", "~1"))
	}
	return b.String()
}
