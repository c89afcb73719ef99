package jsontext

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// Fault says why a Scanner refuses a text. Its own text is for people.
type Fault string

// The faults.
const (
	Invalid     Fault = "not JSON"
	Truncated   Fault = "ends too early"
	InvalidUTF8 Fault = "not UTF-8"
	TooDeep     Fault = "nested too deep"
	// Only a strict scanner reports these.
	HalfSurrogate   Fault = "half of a surrogate pair"
	TooManyValues   Fault = "too many values"
	ExponentTooLong Fault = "exponent of a number too long"
)

// Scanner checks JSON (RFC 8259) in UTF-8. Its methods take the position at which something begins,
// and return the position after it. They return -1 for an error: Fault and At then say what is
// wrong and where. A Scanner allocates memory only for keys. The caller sets the first fields
// before use. A Scanner is not safe for concurrent use.
type Scanner struct {
	// MaxDepth bounds how deep objects and arrays are nested.
	MaxDepth int
	// Strict makes the scanner also refuse halves of surrogate pairs, look for duplicate keys, and
	// apply the bounds below.
	Strict            bool
	MaxValues         int // of what Value reads
	MaxExponentDigits int

	Src    []byte
	Depth  int  // of the object or array around the present position
	Values int  // number of values so far, in a strict scanner
	Spaced bool // there was white space between tokens
	// Duplicate is where a key begins that its object has twice, 0 for none. It is the first that
	// was found. The scanner continues: what follows can still be checked.
	Duplicate int

	Fault Fault
	At    int // position of the fault

	keys    []key  // of the open objects, the innermost last
	decoded []byte // those of them that have escapes
}

// KeyBytes is how much memory a strict scanner takes for each key of the open objects.
const KeyBytes = 16

// key is a key of an open object.
type key struct {
	at       uint32 // of its opening quote
	from, to uint32 // in Src, or in Scanner.decoded
	escaped  bool
}

// Reset begins another text. It frees memory that was needed for an unusually large text.
func (s *Scanner) Reset(src []byte) {
	const most = 64 << 10
	s.Src, s.Depth, s.Values, s.Spaced, s.Duplicate, s.Fault, s.At = src, 0, 0, false, 0, "", 0
	if cap(s.keys) > most/KeyBytes {
		s.keys = nil
	}
	if cap(s.decoded) > most {
		s.decoded = nil
	}
	s.keys, s.decoded = s.keys[:0], s.decoded[:0]
}

// Fail sets Fault and At, and returns -1.
func (s *Scanner) Fail(at int, why Fault) int {
	s.Fault, s.At = why, at
	return -1
}

// Unexpected fails because JSON does not allow the byte at i, or because the text ends there.
func (s *Scanner) Unexpected(i int) int {
	if i >= len(s.Src) {
		return s.Fail(len(s.Src), Truncated)
	}
	return s.Fail(i, Invalid)
}

// Space skips white space.
func (s *Scanner) Space(i int) int {
	if i < len(s.Src) && s.Src[i] <= ' ' {
		return s.space(i)
	}
	return i
}

//go:noinline // so that Space stays small enough to be inlined everywhere
func (s *Scanner) space(i int) int {
	for i < len(s.Src) && (s.Src[i] == ' ' || s.Src[i] == '\n' || s.Src[i] == '\t' || s.Src[i] == '\r') {
		s.Spaced = true
		i++
	}
	return i
}

// End checks that only white space follows the value that ends at i, and returns i. It passes -1 on.
func (s *Scanner) End(i int) int {
	if i < 0 {
		return i
	}
	if end := s.Space(i); end < len(s.Src) {
		return s.Unexpected(end)
	}
	return i
}

// Value checks a value.
func (s *Scanner) Value(i int) int {
	if i >= len(s.Src) {
		return s.Unexpected(i)
	}
	if s.Strict {
		if s.Values++; s.Values > s.MaxValues {
			return s.Fail(i, TooManyValues)
		}
	}
	switch c := s.Src[i]; {
	case c == '"':
		end, _ := s.String(i)
		return end
	case c == '{':
		return s.Object(i, nil)
	case c == '[':
		i, more := s.Open(i)
		for more {
			if i = s.Value(i); i < 0 {
				return i
			}
			i, more = s.Next(i, ']')
		}
		return i
	case c == '-' || c-'0' < 10:
		return s.Number(i)
	}
	return s.Literal(i)
}

// Object checks the object at i. Unless member is nil, it calls member with the name of each
// member, the position of the name, and that of the value, for the end of the value or -1. The name
// is valid until the object ends.
func (s *Scanner) Object(i int, member func(name []byte, at, value int) int) int {
	keys, decoded := len(s.keys), len(s.decoded)
	i, more := s.Open(i)
	for more {
		at := i
		name, value := s.Key(i)
		switch {
		case value < 0:
			return value
		case member == nil:
			i = s.Value(value)
		default:
			i = member(name, at, value)
		}
		if i < 0 {
			return i
		}
		i, more = s.Next(i, '}')
	}
	if s.Strict && i >= 0 {
		s.findDuplicate(s.keys[keys:])
		s.keys, s.decoded = s.keys[:keys], s.decoded[:decoded]
	}
	return i
}

// Open reads the bracket of an object or array, and reports whether a member or element follows.
func (s *Scanner) Open(i int) (next int, more bool) {
	if s.Depth++; s.Depth > s.MaxDepth {
		return s.Fail(i, TooDeep), false
	}
	closing := s.Src[i] + 2 // '}' or ']'
	if i = s.Space(i + 1); i < len(s.Src) && s.Src[i] == closing {
		s.Depth--
		return i + 1, false
	}
	return i, true
}

// Next reads what follows a member or an element: a comma, or the closing bracket. It reports
// whether there is another member or element.
func (s *Scanner) Next(i int, closing byte) (next int, more bool) {
	src := s.Src
	if i < len(src) && src[i] <= ' ' {
		i = s.space(i)
	}
	switch {
	case i < len(src) && src[i] == ',':
		if i++; i < len(src) && src[i] <= ' ' {
			i = s.space(i)
		}
		return i, true
	case i < len(src) && src[i] == closing:
		s.Depth--
		return i + 1, false
	}
	return s.Unexpected(i), false
}

// Key reads a key and its colon. It returns the key without escapes, and the position of the value.
// The key is valid until the next call; in a strict scanner, until its object ends.
func (s *Scanner) Key(i int) (name []byte, value int) {
	src := s.Src
	if i >= len(src) || src[i] != '"' {
		return nil, s.Unexpected(i)
	}
	end, escaped := s.String(i)
	if end < 0 {
		return nil, end
	}
	name = src[i+1 : end-1]
	if escaped || s.Strict {
		name = s.keep(i, name, escaped)
	}
	if end >= len(src) || src[end] != ':' {
		if end = s.Space(end); end >= len(src) || src[end] != ':' {
			return nil, s.Unexpected(end)
		}
	}
	if end++; end < len(src) && src[end] <= ' ' {
		end = s.space(end)
	}
	return name, end
}

// keep decodes the key at i, and keeps it in a strict scanner.
func (s *Scanner) keep(i int, name []byte, escaped bool) []byte {
	k := key{at: uint32(i), from: uint32(i + 1), to: uint32(i + 1 + len(name)), escaped: escaped}
	if escaped {
		if !s.Strict {
			s.decoded = s.decoded[:0]
		}
		k.from = uint32(len(s.decoded))
		s.decoded, _ = AppendDecoded(s.decoded, name)
		k.to = uint32(len(s.decoded))
	}
	if s.Strict {
		s.keys = append(s.keys, k)
	}
	return s.name(k)
}

func (s *Scanner) name(k key) []byte {
	if k.escaped {
		return s.decoded[k.from:k.to]
	}
	return s.Src[k.from:k.to]
}

// findDuplicate sorts many keys: to compare each with each other would take too long.
func (s *Scanner) findDuplicate(keys []key) {
	const few = 12
	compare := func(a, b key) int {
		if n := cmp.Compare(a.to-a.from, b.to-b.from); n != 0 {
			return n
		}
		return bytes.Compare(s.name(a), s.name(b))
	}
	if len(keys) > few {
		slices.SortStableFunc(keys, compare)
	}
	for i := 1; i < len(keys) && s.Duplicate == 0; i++ {
		earlier := keys[:i]
		if len(keys) > few {
			earlier = keys[i-1 : i]
		}
		for _, k := range earlier {
			if k.to-k.from == keys[i].to-keys[i].from && compare(k, keys[i]) == 0 {
				s.Duplicate = int(keys[i].at)
			}
		}
	}
}

// Bit patterns for testing eight bytes at a time.
const (
	eachByte  = 0x0101010101010101
	highBits  = 0x8080808080808080
	quotes    = '"' * eachByte
	slashes   = '\\' * eachByte
	blanks    = ' ' * eachByte
	wordBytes = 8
)

// String checks a string, and reports whether it has escapes.
func (s *Scanner) String(i int) (end int, escaped bool) {
	src := s.Src
	i++
	start := i
	for i+wordBytes <= len(src) {
		// Most strings are ASCII without escapes: the first byte of another kind is the quote.
		w := binary.LittleEndian.Uint64(src[i:])
		if m := (special(w) | w) & highBits; m != 0 {
			if i += bits.TrailingZeros64(m) / wordBytes; src[i] == '"' {
				return i + 1, false
			}
			break
		}
		i += wordBytes
	}
	return s.anyString(start, i)
}

// special sets the highest bit of bytes that are a quote, a backslash or a control character. The
// lowest such bit is right. Higher ones may be wrong, because a borrow affects only higher bytes.
func special(w uint64) uint64 {
	q, b := w^quotes, w^slashes
	return (q-eachByte)&^q | (b-eachByte)&^b | (w-blanks)&^w
}

// anyString checks a string that begins at start, and is ASCII without escapes up to i.
func (s *Scanner) anyString(start, i int) (end int, escaped bool) {
	src, ascii := s.Src, true
	for {
		for i+wordBytes <= len(src) {
			w := binary.LittleEndian.Uint64(src[i:])
			if m := special(w) & highBits; m != 0 {
				at := bits.TrailingZeros64(m)
				if w&highBits&(1<<at-1) != 0 {
					ascii = false
				}
				i += at / wordBytes
				break
			}
			if w&highBits != 0 {
				ascii = false
			}
			i += wordBytes
		}
		if i >= len(src) {
			return s.Fail(len(src), Truncated), false
		}
		switch c := src[i]; {
		case c == '"':
			if !ascii && !utf8.Valid(src[start:i]) {
				return s.Fail(start+invalidAt(src[start:i]), InvalidUTF8), false
			}
			return i + 1, escaped
		case c == '\\':
			escaped = true
			n := s.escape(i)
			if n < 0 {
				return n, false
			}
			i += n
		case c < ' ':
			return s.Fail(i, Invalid), false
		default:
			if c >= utf8.RuneSelf {
				ascii = false
			}
			i++
		}
	}
}

// invalidAt returns the offset of the first byte that is not UTF-8.
func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// escape returns the length of the escape at i; in a strict scanner, of both halves of a surrogate
// pair.
func (s *Scanner) escape(i int) int {
	rest := s.Src[i:]
	if len(rest) > 1 && strings.IndexByte(`"\/bfnrt`, rest[1]) >= 0 {
		return 2
	}
	unit, ok := CodeUnit(rest)
	switch {
	case !ok:
		return s.Fail(i, Invalid)
	case !s.Strict || unit < 0xd800 || unit > 0xdfff:
		return 6
	}
	if low, ok := CodeUnit(rest[6:]); unit > 0xdbff || !ok || low < 0xdc00 || low > 0xdfff {
		return s.Fail(i, HalfSurrogate)
	}
	return 12
}

// Number checks a number.
func (s *Scanner) Number(i int) int {
	src, from := s.Src, i
	if i < len(src) && src[i] == '-' {
		i++
	}
	end := Digits(src, i)
	switch {
	case end == i:
		return s.Unexpected(i)
	case src[i] == '0':
		end = i + 1
	}
	if i = end; i < len(src) && src[i] == '.' {
		if end = Digits(src, i+1); end == i+1 {
			return s.Unexpected(end)
		}
		i = end
	}
	if i < len(src) && src[i]|0x20 == 'e' {
		if i++; i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		switch end = Digits(src, i); {
		case end == i:
			return s.Unexpected(end)
		case s.Strict && end-i > s.MaxExponentDigits:
			return s.Fail(from, ExponentTooLong)
		}
		i = end
	}
	return i
}

// Digits returns the end of the decimal digits of src that begin at i.
func Digits(src []byte, i int) int {
	for i < len(src) && src[i]-'0' < 10 {
		i++
	}
	return i
}

// Literal checks true, false or null.
func (s *Scanner) Literal(i int) int {
	word := "null"
	if i < len(s.Src) && s.Src[i] == 't' {
		word = "true"
	} else if i < len(s.Src) && s.Src[i] == 'f' {
		word = "false"
	}
	for n := range len(word) {
		if i+n >= len(s.Src) || s.Src[i+n] != word[n] {
			return s.Unexpected(i + n)
		}
	}
	return i + len(word)
}
