package match

import (
	"fmt"
	"slices"
)

// orKey stands in the place of a field's name.
const orKey = "$or"

// reader reads a pattern from its text.
type reader struct {
	src     []byte
	pos     int
	path    []string // keys of the event that lead to what is read
	pointer []string // keys of the pattern that lead there
	depth   int
	inOr    int // how many $or are around
}

func (r *reader) pattern() ([]conjunction, error) {
	r.blanks()
	if r.peek() != '{' {
		return nil, r.wrong(r.pos, "a pattern is a JSON object")
	}
	start := r.pos
	branches, err := r.object()
	if err != nil {
		return nil, err
	}
	r.blanks()
	if r.pos < len(r.src) {
		return nil, r.wrong(r.pos, "something follows the pattern")
	}
	out := make([]conjunction, len(branches))
	for i, b := range branches {
		out[i] = sortConjunction(slices.Clone(b))
	}
	if len(out) == 0 {
		return nil, r.wrong(start, "the pattern is empty")
	}
	return out, nil
}

// object reads the fields of an object and returns the combinations of its branches.
func (r *reader) object() ([][]*field, error) {
	start := r.pos
	if r.depth++; r.depth > MaxPatternDepth {
		return nil, r.wrong(start, "objects are nested too deep: %d is the limit", MaxPatternDepth)
	}
	defer func() { r.depth-- }()
	all := [][]*field{nil}
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
		return nil, r.wrong(start, "an empty object matches nothing: name a field")
	}
	return all, nil
}

// member reads the value of one key.
func (r *reader) member(key string, at int) ([][]*field, error) {
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
		f := &field{path: slices.Clone(r.path), pointer: r.where(), groups: [][]condition{group}}
		return [][]*field{{f}}, nil
	}
	return nil, r.wrong(r.pos, "a field's value is an object or a list of alternatives")
}

// reserved names would make a list of operators out of a field by a slip.
func reserved(key string) bool {
	switch key {
	case "prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "cidr", "exists":
		return true
	}
	return false
}

// or reads the branches of $or.
func (r *reader) or() ([][]*field, error) {
	start := r.pos
	if r.peek() != '[' {
		return nil, r.wrong(start, "$or is a list of objects")
	}
	r.inOr++
	defer func() { r.inOr-- }()
	var all [][]*field
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
		return r.bounded(all, start)
	})
	if err != nil {
		return nil, err
	}
	if branches < 2 {
		return nil, r.wrong(start, "$or has two branches or more")
	}
	return all, nil
}

// combine joins each branch of what was read with each branch of what comes next.
func (r *reader) combine(all, parts [][]*field, at int) ([][]*field, error) {
	if len(all)*len(parts) > MaxPatternBranches {
		return nil, r.exploding(at)
	}
	if len(parts) == 1 {
		for i := range all {
			all[i] = append(all[i], parts[0]...)
		}
		return all, r.bounded(all, at)
	}
	out := make([][]*field, 0, len(all)*len(parts))
	for _, one := range all {
		for _, part := range parts {
			out = append(out, slices.Concat(one, part))
		}
	}
	return out, r.bounded(out, at)
}

func (r *reader) bounded(all [][]*field, at int) error {
	fields := 0
	for _, one := range all {
		fields += len(one)
	}
	if len(all) > MaxPatternBranches || fields > MaxPatternFields {
		return r.exploding(at)
	}
	return nil
}

func (r *reader) exploding(at int) error {
	return r.wrong(at, "$or makes too many combinations: %d with %d fields are the limit", MaxPatternBranches, MaxPatternFields)
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
	return group, err
}

// exact reads a value that is not a list or an object.
func (r *reader) exact() (condition, error) {
	k, text, err := r.scalar()
	return exactly(k, text), err
}

func (r *reader) members(each func(key string, at int) error) error {
	r.pos++ // '{'
	var seen map[string]bool
	for first := true; ; first = false {
		r.blanks()
		if r.peek() == '}' && first {
			r.pos++
			return nil
		}
		at := r.pos
		if r.peek() != '"' {
			return r.broken(r.pos, "a key in quotes")
		}
		key, err := r.text()
		if err != nil {
			return err
		}
		r.pointer = append(r.pointer, key)
		if seen[key] {
			return r.wrong(at, "duplicate key %q", key)
		}
		if seen == nil {
			seen = map[string]bool{}
		}
		seen[key] = true
		r.blanks()
		if r.peek() != ':' {
			return r.broken(r.pos, "a colon")
		}
		r.pos++
		r.blanks()
		if err := each(key, at); err != nil {
			return err
		}
		r.pointer = r.pointer[:len(r.pointer)-1]
		if more, err := r.another('}'); !more {
			return err
		}
	}
}

func (r *reader) elements(each func() error) error {
	r.pos++ // '['
	for n := 0; ; n++ {
		r.blanks()
		if r.peek() == ']' && n == 0 {
			r.pos++
			return nil
		}
		r.pointer = append(r.pointer, fmt.Sprint(n))
		if err := each(); err != nil {
			return err
		}
		r.pointer = r.pointer[:len(r.pointer)-1]
		if more, err := r.another(']'); !more {
			return err
		}
	}
}

// another reads what is behind a member or an element: a comma, and there is another one, or end.
func (r *reader) another(end byte) (bool, error) {
	r.blanks()
	switch r.peek() {
	case ',':
		r.pos++
		return true, nil
	case end:
		r.pos++
		return false, nil
	}
	return false, r.broken(r.pos, "a comma or "+string(end))
}

// scalar reads a string as its text, a number as its key, or a literal.
func (r *reader) scalar() (kind, string, error) {
	start := r.pos
	switch c := r.peek(); {
	case c == '"':
		text, err := r.text()
		return kindString, text, err
	case c == '-' || '0' <= c && c <= '9':
		end, why := scanNumber(r.src, start)
		if why != "" {
			return 0, "", r.wrong(end, "the number is not valid JSON")
		}
		key, ok := appendNumber(nil, r.src[start:end])
		if !ok {
			return 0, "", r.wrong(start, "the number's exponent is too long")
		}
		r.pos = end
		return kindNumber, string(key), nil
	case c == 't' || c == 'f' || c == 'n':
		end, k, why := scanLiteral(r.src, start)
		if why != "" {
			return 0, "", r.broken(end, "true, false or null")
		}
		r.pos = end
		return k, "", nil
	}
	return 0, "", r.broken(start, "a value")
}

func (r *reader) text() (string, error) {
	start := r.pos + 1
	end, escaped, why := scanText(r.src, start)
	switch why {
	case "":
	case InvalidUTF8:
		return "", r.wrong(end, "the string is not UTF-8")
	case Truncated:
		return "", r.wrong(end, "the pattern ends within a string")
	default:
		return "", r.wrong(end, "the string has a control character or an escape that JSON does not know")
	}
	r.pos = end + 1
	if !escaped {
		return string(r.src[start:end]), nil
	}
	text, lone := decodeText(nil, r.src[start:end])
	if lone {
		return "", r.wrong(start, "the string has half a surrogate pair")
	}
	return string(text), nil
}

func (r *reader) blanks() { r.pos = skipBlanks(r.src, r.pos) }

// peek returns the next byte, 0 at the end.
func (r *reader) peek() byte {
	if r.pos < len(r.src) {
		return r.src[r.pos]
	}
	return 0
}

func (r *reader) wrong(at int, format string, args ...any) error {
	return &Error{Offset: at, Pointer: r.where(), Reason: fmt.Sprintf(format, args...)}
}

// broken is for text that is not JSON.
func (r *reader) broken(at int, wanted string) error {
	if at >= len(r.src) {
		return r.wrong(at, "the pattern ends where %s should be", wanted)
	}
	return r.wrong(at, "the pattern is not JSON: %s should be here", wanted)
}

// where is the JSON Pointer of what is read.
func (r *reader) where() string {
	var b []byte
	for _, step := range r.pointer {
		b = append(b, '/')
		for i := range len(step) {
			switch c := step[i]; c {
			case '~':
				b = append(b, "~0"...)
			case '/':
				b = append(b, "~1"...)
			default:
				b = append(b, c)
			}
		}
	}
	return string(b)
}
