package event

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// scanner checks JSON by RFC 8259. It also checks that no object has a key twice, that all is
// UTF-8, that no text has half of a surrogate pair, and the bounds of this package. It allocates
// memory only for the keys of the objects around the present position.
//
// Its functions return the position after what they have read, or -1 after a fault, which is in
// err. A fault that is not of syntax, such as a duplicate key, is in fault: the scanner reads on,
// so that it can read the later entries of a batch.
type scanner struct {
	src  []byte
	seed maphash.Seed
	err  *Error

	// These are about the present event.
	fault   *Error
	values  int
	blanks  bool     // there is white space between tokens
	level   int      // the depth of the object whose members are kept, 0 for none
	members []member // of that object

	keys    []key  // of the objects around the present position, the innermost last
	decoded []byte // of a key with escapes
}

// key is a key of an object that is being read.
type key struct {
	hash    uint64 // of its text, in objects of many keys
	at      uint32 // of its first byte
	end     uint32 // of its closing quote
	escaped bool
}

// member is a name and its value.
type member struct {
	name       []byte // decoded
	at         int    // where the name begins
	value      []byte
	valueAt    int
	escaped    bool // the value is a text with escapes
	withBlanks bool // the value has white space between tokens
}

// begin prepares for another event or document.
func (s *scanner) begin(level int) {
	s.fault, s.values, s.blanks, s.level = nil, 0, false, level
	s.members = s.members[:0]
}

func (s *scanner) fail(at int, reason Reason, format string, args ...any) int {
	s.err = faultf(reason, at, format, args...)
	return -1
}

// broken reports a byte that JSON does not allow there, or an end that comes too early.
func (s *scanner) broken(at int) int {
	if at >= len(s.src) {
		return s.fail(len(s.src), NotJSON, "the JSON ends too early")
	}
	return s.fail(at, NotJSON, "not JSON: unexpected %s", shown(s.src[at:at+1]))
}

// document reads a value that has only white space around it, and returns the value.
func (s *scanner) document() []byte {
	from := s.skipBlanks(0)
	end := s.value(from, 0)
	if end < 0 {
		return nil
	}
	if !s.ends(end) {
		return nil
	}
	return s.src[from:end]
}

// ends reports whether only white space is left.
func (s *scanner) ends(i int) bool {
	if i = s.skipBlanks(i); i < len(s.src) {
		s.broken(i)
		return false
	}
	return true
}

func (s *scanner) skipBlanks(i int) int {
	for ; i < len(s.src); i++ {
		if c := s.src[i]; c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return i
		}
		s.blanks = true
	}
	return i
}

// value reads the value at i. depth is how many objects and lists are around it.
func (s *scanner) value(i, depth int) int {
	if i >= len(s.src) {
		return s.broken(i)
	}
	if s.values++; s.values > MaxValues {
		return s.fail(i, TooMany, "more than %d values", MaxValues)
	}
	switch c := s.src[i]; {
	case c == '"':
		end, _ := s.text(i)
		return end
	case c == '{':
		return s.object(i, depth+1)
	case c == '[':
		return s.list(i, depth+1)
	case c == '-' || c-'0' < 10:
		return s.number(i)
	default:
		return s.literal(i)
	}
}

func (s *scanner) object(i, depth int) int {
	if depth > MaxDepth {
		return s.fail(i, TooDeep, "nested deeper than %d", MaxDepth)
	}
	base := len(s.keys)
	if i = s.skipBlanks(i + 1); i < len(s.src) && s.src[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(s.src) || s.src[i] != '"' {
			return s.broken(i)
		}
		at := i + 1
		end, escaped := s.text(i)
		if end < 0 {
			return -1
		}
		k := key{at: uint32(at), end: uint32(end - 1), escaped: escaped}
		s.keys = append(s.keys, k)
		if i = s.skipBlanks(end); i >= len(s.src) || s.src[i] != ':' {
			return s.broken(i)
		}
		i = s.skipBlanks(i + 1)
		if depth == s.level {
			i = s.member(i, depth, k)
		} else {
			i = s.value(i, depth)
		}
		if i < 0 {
			return -1
		}
		if i = s.skipBlanks(i); i >= len(s.src) {
			return s.broken(i)
		}
		switch s.src[i] {
		case ',':
			i = s.skipBlanks(i + 1)
		case '}':
			s.distinct(base)
			s.keys = s.keys[:base]
			return i + 1
		default:
			return s.broken(i)
		}
	}
}

// member reads the value at i and keeps it with its name.
func (s *scanner) member(i, depth int, k key) int {
	m := member{at: int(k.at), valueAt: i}
	if m.name = s.name(k); k.escaped {
		m.name = bytes.Clone(m.name)
	}
	before := s.blanks
	s.blanks = false
	end := s.value(i, depth)
	if end < 0 {
		return -1
	}
	m.value, m.withBlanks = s.src[i:end], s.blanks
	m.escaped = m.value[0] == '"' && bytes.IndexByte(m.value, '\\') >= 0
	s.blanks = s.blanks || before
	if len(s.members) < MaxAttributes+1 {
		s.members = append(s.members, m)
	} else if s.fault == nil {
		s.fault = faultf(BadAttribute, m.at-1, "more than %d attributes", MaxAttributes)
	}
	return end
}

// name returns a key's text. It is valid until the next call.
func (s *scanner) name(k key) []byte {
	raw := s.src[k.at:k.end]
	if !k.escaped {
		return raw
	}
	s.decoded = appendDecoded(s.decoded[:0], raw)
	return s.decoded
}

// distinct looks for duplicate keys, from base on. It sorts many keys by hashes, which a sender
// cannot choose: the seed is random.
func (s *scanner) distinct(base int) {
	if s.fault != nil {
		return
	}
	keys := s.keys[base:]
	if len(keys) <= 12 {
		for i, k := range keys {
			for _, earlier := range keys[:i] {
				if (k.end-k.at == earlier.end-earlier.at || k.escaped || earlier.escaped) && s.same(k, earlier) {
					return
				}
			}
		}
		return
	}
	for i := range keys {
		keys[i].hash = maphash.Bytes(s.seed, s.name(keys[i]))
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.at, b.at)) })
	for i := 1; i < len(keys); i++ {
		if keys[i].hash == keys[i-1].hash && s.same(keys[i], keys[i-1]) {
			return
		}
	}
}

// same reports whether two keys are equal, and notes that as a fault.
func (s *scanner) same(later, earlier key) bool {
	name := s.name(later)
	if later.escaped && earlier.escaped {
		name = bytes.Clone(name)
	}
	if !bytes.Equal(name, s.name(earlier)) {
		return false
	}
	s.fault = faultf(DuplicateKey, int(later.at)-1, "the key %s occurs twice", shown(name))
	return true
}

func (s *scanner) list(i, depth int) int {
	if depth > MaxDepth {
		return s.fail(i, TooDeep, "nested deeper than %d", MaxDepth)
	}
	if i = s.skipBlanks(i + 1); i < len(s.src) && s.src[i] == ']' {
		return i + 1
	}
	for {
		if i = s.value(i, depth); i < 0 {
			return -1
		}
		if i = s.skipBlanks(i); i >= len(s.src) {
			return s.broken(i)
		}
		switch s.src[i] {
		case ',':
			i = s.skipBlanks(i + 1)
		case ']':
			return i + 1
		default:
			return s.broken(i)
		}
	}
}

// text reads the text whose opening quote is at i, and reports whether it has escapes.
func (s *scanner) text(i int) (end int, escaped bool) {
	src := s.src
	for i++; i < len(src); {
		for i+8 <= len(src) && plain(binary.LittleEndian.Uint64(src[i:])) {
			i += 8
		}
		if i >= len(src) {
			break
		}
		c := src[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		switch {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			n := s.escape(i)
			if n < 0 {
				return -1, false
			}
			i, escaped = i+n, true
		case c < ' ':
			return s.fail(i, NotJSON, "not JSON: a text has the control character %s, which must be escaped", shown(src[i:i+1])), false
		default:
			r, n := utf8.DecodeRune(src[i:])
			if r == utf8.RuneError && n == 1 {
				return s.fail(i, InvalidUTF8, "not UTF-8"), false
			}
			i += n
		}
	}
	return s.broken(i), false
}

// plain reports whether eight bytes are ASCII without quotes, backslashes and control characters.
func plain(w uint64) bool {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^'"'*each, w^'\\'*each
	return (w|(quote-each)|(slash-each)|(w-' '*each))&high == 0
}

// escape returns the length of the escape at i; for a surrogate pair, of both halves.
func (s *scanner) escape(i int) int {
	rest := s.src[i:]
	if len(rest) < 2 {
		return s.broken(len(s.src))
	}
	switch rest[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		return s.broken(i + 1)
	}
	unit, ok := jsontext.CodeUnit(rest)
	switch {
	case !ok:
		return s.fail(i, NotJSON, "not JSON: \\u must be followed by four hexadecimal digits")
	case unit < 0xd800 || unit > 0xdfff:
		return 6
	}
	low, ok := jsontext.CodeUnit(rest[6:])
	if unit > 0xdbff || !ok || low < 0xdc00 || low > 0xdfff {
		return s.fail(i, InvalidUTF8, "half of a surrogate pair")
	}
	return 12
}

func (s *scanner) number(i int) int {
	from := i
	if s.src[i] == '-' {
		i++
	}
	switch {
	case i >= len(s.src):
		return s.broken(i)
	case s.src[i] == '0':
		i++
	default:
		end := s.digits(i)
		if end == i {
			return s.broken(i)
		}
		i = end
	}
	if i < len(s.src) && s.src[i] == '.' {
		end := s.digits(i + 1)
		if end == i+1 {
			return s.broken(end)
		}
		i = end
	}
	if i < len(s.src) && s.src[i]|0x20 == 'e' {
		if i++; i < len(s.src) && (s.src[i] == '+' || s.src[i] == '-') {
			i++
		}
		end := s.digits(i)
		switch {
		case end == i:
			return s.broken(end)
		case end-i > MaxExponentDigits:
			return s.fail(from, BadNumber, "the exponent of a number has more than %d digits", MaxExponentDigits)
		}
		i = end
	}
	return i
}

func (s *scanner) digits(i int) int {
	for i < len(s.src) && s.src[i]-'0' < 10 {
		i++
	}
	return i
}

func (s *scanner) literal(i int) int {
	word := "null"
	switch s.src[i] {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	}
	for n := range len(word) {
		if i+n >= len(s.src) || s.src[i+n] != word[n] {
			return s.broken(i + n)
		}
	}
	return i + len(word)
}
