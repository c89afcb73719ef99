// Package jsontext checks JSON texts (RFC 8259), and writes and reads the escapes of their strings.
// It imports no other package of this repository.
package jsontext

import (
	"bytes"
	"unicode/utf8"
)

const digits = "0123456789abcdef"

// AppendEscape appends the escape of a control character, a quotation mark or a backslash.
func AppendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
	}
}

// Unescape returns the character that c stands for behind a backslash. c is not 'u'.
func Unescape(c byte) byte {
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

// CodeUnit returns the UTF-16 code unit of the escape \uXXXX at the beginning of b. ok is false if
// there is none.
func CodeUnit(b []byte) (unit rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		v := HexValue(c)
		if v < 0 {
			return 0, false
		}
		unit = unit<<4 | v
	}
	return unit, true
}

// HexValue returns the value of a hexadecimal digit, -1 for other characters.
func HexValue(c byte) rune {
	switch lower := c | 0x20; {
	case '0' <= c && c <= '9':
		return rune(c - '0')
	case 'a' <= lower && lower <= 'f':
		return rune(lower-'a') + 10
	}
	return -1
}

// AppendDecoded appends the text of a valid JSON string without its quotes. lone reports whether it
// contains half of a surrogate pair, which becomes U+FFFD.
func AppendDecoded(dst, src []byte) (text []byte, lone bool) {
	for {
		i := bytes.IndexByte(src, '\\')
		if i < 0 || i+1 >= len(src) {
			return append(dst, src...), lone
		}
		dst = append(dst, src[:i]...)
		src = src[i:]
		if src[1] != 'u' {
			dst = append(dst, Unescape(src[1]))
			src = src[2:]
			continue
		}
		r, ok := CodeUnit(src)
		if !ok {
			return dst, lone
		}
		src = src[6:]
		if r&^0x7ff == 0xd800 {
			low, ok := CodeUnit(src)
			if r < 0xdc00 && ok && low&^0x3ff == 0xdc00 {
				r = (r-0xd800)<<10 | (low - 0xdc00) + 0x10000
				src = src[6:]
			} else {
				r, lone = utf8.RuneError, true
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
}

// AppendString appends text, which is UTF-8, as a JSON string.
func AppendString[T string | []byte](dst []byte, text T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' {
			dst = append(dst, text[from:i]...)
			dst = AppendEscape(dst, c)
			from = i + 1
		}
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}

// AppendCompact appends a valid text without the white space between its tokens.
func AppendCompact(dst, src []byte) []byte {
	inString, from := false, 0
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && c <= ' ':
			dst = append(dst, src[from:i]...)
			from = i + 1
		}
	}
	return append(dst, src[from:]...)
}
