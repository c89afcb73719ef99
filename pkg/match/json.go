package match

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Bit patterns to test eight bytes at a time.
const (
	eachByte  = 0x0101010101010101
	highBits  = 0x8080808080808080
	quotes    = '"' * eachByte
	slashes   = '\\' * eachByte
	blanks    = ' ' * eachByte
	wordBytes = 8
)

// scanText returns the position of the quote that closes the string whose first character is at i, and whether the string has escapes. If the string
// is not valid it returns the position of the fault and a reason.
func scanText(src []byte, i int) (end int, escaped bool, why Reason) {
	start := i
	ascii := true
	for {
		for i+wordBytes <= len(src) {
			w := binary.LittleEndian.Uint64(src[i:])
			q, b := w^quotes, w^slashes
			// The lowest bit set is that of a quote, a backslash or a control character: borrows only reach upwards.
			m := ((q - eachByte) &^ q) | ((b - eachByte) &^ b) | ((w - blanks) &^ w)
			m &= highBits
			if m != 0 {
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
			return len(src), false, Truncated
		}
		switch c := src[i]; {
		case c == '"':
			if !ascii && !utf8.Valid(src[start:i]) {
				return start + invalidAt(src[start:i]), false, InvalidUTF8
			}
			return i, escaped, ""
		case c == '\\':
			escaped = true
			n := escapeLength(src[i:])
			if n == 0 {
				return i, false, InvalidJSON
			}
			i += n
		case c < ' ':
			return i, false, InvalidJSON
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

// escapeLength returns the length of the escape that b begins with, 0 if it is none.
func escapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hexUnit(b); ok {
			return 6
		}
	}
	return 0
}

// hexUnit returns the UTF-16 unit of an escape \uXXXX.
func hexUnit(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var u rune
	for _, c := range b[2:6] {
		v, ok := hexValue(c)
		if !ok {
			return 0, false
		}
		u = u<<4 | v
	}
	return u, true
}

func hexValue(c byte) (rune, bool) {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0'), true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10, true
	}
	return 0, false
}

// decodeText appends the text of a string that scanText has accepted. lone tells of half a surrogate pair, which becomes U+FFFD.
func decodeText(dst, src []byte) (text []byte, lone bool) {
	for i := 0; i < len(src); {
		c := src[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = src[i+1]
		if c != 'u' {
			dst = append(dst, simpleEscape(c))
			i += 2
			continue
		}
		r, _ := hexUnit(src[i:])
		i += 6
		if r&^0x7ff == 0xd800 {
			low, ok := hexUnit(src[i:])
			if r < 0xdc00 && ok && low&^0x3ff == 0xdc00 {
				r = (r-0xd800)<<10 | (low - 0xdc00) + 0x10000
				i += 6
			} else {
				r, lone = utf8.RuneError, true
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, lone
}

func simpleEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // '"', '\\', '/'
}

// scanNumber returns the end of the number that begins at i, or the position of the fault.
func scanNumber(src []byte, i int) (end int, why Reason) {
	if i < len(src) && src[i] == '-' {
		i++
	}
	switch {
	case i >= len(src):
		return i, Truncated
	case src[i] == '0':
		i++
	case '1' <= src[i] && src[i] <= '9':
		i = digits(src, i)
	default:
		return i, InvalidJSON
	}
	if i < len(src) && src[i] == '.' {
		end := digits(src, i+1)
		if end == i+1 {
			return faultAt(src, end)
		}
		i = end
	}
	if i < len(src) && src[i]|0x20 == 'e' {
		i++
		if i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		end := digits(src, i)
		if end == i {
			return faultAt(src, end)
		}
		i = end
	}
	return i, ""
}

func digits(src []byte, i int) int {
	for i < len(src) && src[i]-'0' < 10 {
		i++
	}
	return i
}

// faultAt tells a document that ends too early from one that goes on with something else.
func faultAt(src []byte, i int) (int, Reason) {
	if i >= len(src) {
		return len(src), Truncated
	}
	return i, InvalidJSON
}

// scanLiteral returns the end and the kind of true, false or null at i.
func scanLiteral(src []byte, i int) (end int, k kind, why Reason) {
	var word string
	switch src[i] {
	case 't':
		word, k = "true", kindTrue
	case 'f':
		word, k = "false", kindFalse
	case 'n':
		word, k = "null", kindNull
	default:
		return i, 0, InvalidJSON
	}
	for n := range len(word) {
		if i+n >= len(src) || src[i+n] != word[n] {
			end, why = faultAt(src, i+n)
			return end, 0, why
		}
	}
	return i + len(word), k, ""
}

// skipBlanks returns the position of the next byte that is no white space.
func skipBlanks(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\n' || src[i] == '\t' || src[i] == '\r') {
		i++
	}
	return i
}
