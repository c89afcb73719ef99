package transform

import (
	"slices"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// apply returns the headers that are left, under their new names. It does not change the given
// list: others may use it.
func (c *HeadersConfig) apply(headers []message.Header) []message.Header {
	if c.isZero() || len(headers) == 0 {
		return headers
	}
	left := make([]message.Header, 0, len(headers))
	for _, h := range headers {
		if len(c.Include) > 0 && !matchesAny(c.Include, h.Name) || matchesAny(c.Exclude, h.Name) {
			continue
		}
		if name, ok := c.Rename[h.Name]; ok {
			h.Name = name
		}
		left = append(left, h)
	}
	return left
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// matches reports whether name matches the pattern. Its time is at most proportional to the product
// of their lengths: it backtracks only to the last '*'.
func matches(pattern, name string) bool {
	p, n := 0, 0
	star, resume := -1, 0
	for n < len(name) {
		_, size := utf8.DecodeRuneInString(name[n:])
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, n
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			n += size
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			_, size = utf8.DecodeRuneInString(name[resume:])
			resume += size
			p, n = star+1, resume
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
