// Package fold compares texts without regard to case, by the simple case folding of Unicode. It
// imports no other package of this repository.
package fold

import (
	"unicode"
	"unicode/utf8"
)

// foldRune returns the smallest of the runes that are equal to r without regard to case.
func foldRune(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}

// Append appends a text after folding each rune.
func Append(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			dst = append(dst, c)
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		dst = utf8.AppendRune(dst, foldRune(r))
		i += n
	}
	return dst
}

// String folds a text.
func String(text string) string { return string(Append(nil, []byte(text))) }

// Prefix reports whether a text begins with a prefix, without regard to case. prefix must be
// folded. n is the length of this prefix in the text.
func Prefix(text []byte, prefix string) (n int, ok bool) {
	for p := 0; p < len(prefix); {
		if n >= len(text) {
			return 0, false
		}
		r, size := utf8.DecodeRune(text[n:])
		want, wide := utf8.DecodeRuneInString(prefix[p:])
		if r != want && foldRune(r) != want {
			return 0, false
		}
		n += size
		p += wide
	}
	return n, true
}

// Suffix reports whether a text ends with a suffix, without regard to case. suffix must be folded.
func Suffix(text []byte, suffix string) bool {
	for len(suffix) > 0 {
		if len(text) == 0 {
			return false
		}
		r, size := utf8.DecodeLastRune(text)
		want, wide := utf8.DecodeLastRuneInString(suffix)
		if r != want && foldRune(r) != want {
			return false
		}
		text, suffix = text[:len(text)-size], suffix[:len(suffix)-wide]
	}
	return true
}

// Equal reports whether a text equals want, without regard to case. want must be folded.
func Equal(text []byte, want string) bool {
	n, ok := Prefix(text, want)
	return ok && n == len(text)
}
