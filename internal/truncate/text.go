// Package truncate shortens texts for logs, errors and answers. The package imports nothing of this
// repository.
package truncate

import (
	"strings"
	"unicode/utf8"
)

// Text shortens s to n bytes at the boundary of a rune, with "..." behind it, and replaces bytes
// that are not UTF-8. It reads no more than n bytes: s may be large.
func Text(s string, n int) string {
	whole := len(s) <= n
	s = Prefix(s, n)
	if s = strings.ToValidUTF8(s, "\uFFFD"); whole && len(s) <= n {
		return s
	}
	return Prefix(s, n) + "..."
}

// Prefix returns the first n bytes of s at most, up to the boundary of a rune.
func Prefix(s string, n int) string { return s[:boundary(s, n)] }

// boundary returns the largest index up to n at which a rune begins.
func boundary(s string, n int) int {
	if len(s) <= n {
		return len(s)
	}
	for back := range min(n, utf8.UTFMax) {
		if utf8.RuneStart(s[n-back]) {
			return n - back
		}
	}
	return n // it is not UTF-8
}
