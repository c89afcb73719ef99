// Package resp reads the Redis protocol, RESP2 and RESP3, as a relay needs it: requests into arguments that stay
// where they are, replies only as far as where each one ends. Both take input in pieces of any size, never read a
// byte twice, and are bounded.
//
// The protocol and its errors are those of Redis 7.0 (networking.c, processInlineBuffer and processMultibulkBuffer).
package resp

import (
	"bytes"
	"strconv"
)

// AppendBulk appends a bulk string.
func AppendBulk[T string | []byte](dst []byte, s T) []byte {
	dst = AppendHeader(dst, '$', len(s))
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

// AppendHeader appends a line that is a letter and a number: ':' integer, '*' array, '$' bulk string and so on.
func AppendHeader(dst []byte, letter byte, n int) []byte {
	dst = append(dst, letter)
	dst = strconv.AppendInt(dst, int64(n), 10)
	return append(dst, '\r', '\n')
}

// AppendCommand appends a command as an array of bulk strings.
func AppendCommand(dst []byte, args ...string) []byte {
	dst = AppendHeader(dst, '*', len(args))
	for _, arg := range args {
		dst = AppendBulk(dst, arg)
	}
	return dst
}

// AppendError appends an error reply. text begins with its code, "ERR" for instance. Redis turns line breaks in it
// into spaces, as the text may hold what a client sent.
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, '-')
	for i := range len(text) {
		c := text[i]
		if c == '\r' || c == '\n' {
			c = ' '
		}
		dst = append(dst, c)
	}
	return append(dst, '\r', '\n')
}

// ParseInt reads a number as Redis' string2ll does: no sign but a minus, no leading zeros, no spaces.
func ParseInt(b []byte) (n int64, ok bool) {
	switch {
	case len(b) == 0 || len(b) > 20:
		return 0, false
	case len(b) == 1 && b[0] == '0':
		return 0, true
	}
	negative := b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || b[0] < '1' || b[0] > '9' {
		return 0, false
	}
	var u uint64
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || u > (1<<64-1-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	if negative {
		if u > 1<<63 {
			return 0, false
		}
		return -int64(u), true
	}
	if u > 1<<63-1 {
		return 0, false
	}
	return int64(u), true
}

// EqualFold reports whether b is word, which is in lower case, whatever the case of b's ASCII letters.
func EqualFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// line returns what stands before the next "\r" of b and the position behind its "\n"; next is 0 when the line is not
// whole yet. Like Redis it does not look at the byte behind "\r".
func line(b []byte) (text []byte, next int) {
	i := bytes.IndexByte(b, '\r')
	if i < 0 || i+2 > len(b) {
		return nil, 0
	}
	return b[:i], i + 2
}
