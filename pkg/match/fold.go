package match

import (
	"unicode"
	"unicode/utf8"
)

// foldRune maps the runes that are equal without regard to case to one of them, the smallest.
func foldRune(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}

// appendFolded appends a text with each rune folded.
func appendFolded(dst, text []byte) []byte {
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

func folded(text string) string { return string(appendFolded(nil, []byte(text))) }

// foldedPrefix reports whether a text begins with a prefix that is folded already, and how much of the text that is.
func foldedPrefix(text []byte, prefix string) (n int, ok bool) {
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

func foldedSuffix(text []byte, suffix string) bool {
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

func foldedEqual(text []byte, want string) bool {
	n, ok := foldedPrefix(text, want)
	return ok && n == len(text)
}
