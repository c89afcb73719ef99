package event

import (
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// appendDecoded appends what src says, a JSON text without its quotes. The scanner has accepted it.
func appendDecoded(dst, src []byte) []byte {
	dst, _ = jsontext.AppendDecoded(dst, src)
	return dst
}

// decodedSize returns how many bytes appendDecoded appends.
func decodedSize(src []byte) (n int) {
	for i := 0; i < len(src); {
		if src[i] != '\\' || i+1 >= len(src) {
			i, n = i+1, n+1
			continue
		}
		if src[i+1] != 'u' {
			i, n = i+2, n+1
			continue
		}
		r, _ := jsontext.CodeUnit(src[i:])
		if i += 6; r >= 0xd800 && r < 0xdc00 {
			r, i = 0x10000, i+6
		}
		n += utf8.RuneLen(r)
	}
	return n
}

// AppendText appends text, which is UTF-8, as a JSON text.
func AppendText(dst []byte, text string) []byte { return appendQuoted(dst, text) }

// appendQuoted appends text, which is UTF-8, as a JSON text.
func appendQuoted[T string | []byte](dst []byte, text T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		dst = jsontext.AppendEscape(dst, c)
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}

// quotedSize returns how many bytes appendQuoted appends.
func quotedSize(text []byte) int {
	n := len(text) + 2
	for _, c := range text {
		switch {
		case c >= ' ' && c != '"' && c != '\\':
		case c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t':
			n++
		default:
			n += 5
		}
	}
	return n
}

// appendCompact appends JSON without the white space between tokens. The scanner has accepted it.
func appendCompact(dst, src []byte) []byte {
	eachRun(src, func(run []byte) { dst = append(dst, run...) })
	return dst
}

// compactSize returns how many bytes appendCompact appends.
func compactSize(src []byte) (n int) {
	eachRun(src, func(run []byte) { n += len(run) })
	return n
}

// eachRun calls f for the parts of JSON between white space.
func eachRun(src []byte, f func(run []byte)) {
	inText, from := false, 0
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case !inText && c <= ' ':
			f(src[from:i])
			from = i + 1
		}
	}
	f(src[from:])
}
