package eventpattern

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/number"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// Bit patterns for testing eight bytes at a time.
const (
	eachByte  = 0x0101010101010101
	highBits  = 0x8080808080808080
	quotes    = '"' * eachByte
	slashes   = '\\' * eachByte
	blanks    = ' ' * eachByte
	wordBytes = 8
)

// scanText returns the position of the quote that closes the string whose first character is at i,
// and whether the string has escapes. For an invalid string it returns the position of the error
// and a reason.
func scanText(src []byte, i int) (end int, escaped bool, why Reason) {
	start := i
	ascii := true
	for {
		for i+wordBytes <= len(src) {
			w := binary.LittleEndian.Uint64(src[i:])
			q, b := w^quotes, w^slashes
			// The lowest bit set belongs to a quote, a backslash or a control character. Higher
			// bits may be wrong, because a borrow affects only higher bytes.
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

// escapeLength returns the length of the escape at the beginning of b, 0 if there is none.
func escapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := jsontext.CodeUnit(b); ok {
			return 6
		}
	}
	return 0
}

// scanNumber returns the end of the number at i, or the position of the error and a reason.
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
		i = number.Digits(src, i)
	default:
		return i, InvalidJSON
	}
	if i < len(src) && src[i] == '.' {
		end := number.Digits(src, i+1)
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
		end := number.Digits(src, i)
		if end == i {
			return faultAt(src, end)
		}
		i = end
	}
	return i, ""
}

// faultAt returns Truncated if the document ends at i, and InvalidJSON otherwise.
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

// skipBlanks returns the position of the next byte that is not white space.
func skipBlanks(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\n' || src[i] == '\t' || src[i] == '\r') {
		i++
	}
	return i
}
