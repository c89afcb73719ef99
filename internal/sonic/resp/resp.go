// Package resp reads the Redis protocol, RESP2 and RESP3, as a proxy needs it. It splits requests
// into arguments without copying them, and finds the end of replies without parsing their content.
// Parser and Scanner accept input in pieces of any size, do not read input twice, and use bounded
// memory.
//
// The protocol and its errors are those of Redis 7.0 (networking.c, processInlineBuffer and
// processMultibulkBuffer). The package imports no other package of Sonic.
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

// AppendHeader appends a line with a letter and a number: ':' for an integer, '*' for an array, '$'
// for a bulk string and so on.
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

// AppendError appends an error reply. text begins with the error's code, "ERR" for instance. As in
// Redis, line breaks become spaces, because the text may contain input of a client.
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

// ParseInt reads a number as Redis' string2ll does: without a plus sign, leading zeros or spaces.
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

// EqualFold reports whether b equals word in upper or lower case ASCII letters. word must be in
// lower case.
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

// line returns the text before the next "\r" of b, and the position after its "\n". next is 0 if
// the line is incomplete. Like Redis it does not check the byte after "\r".
func line(b []byte) (text []byte, next int) {
	i := bytes.IndexByte(b, '\r')
	if i < 0 || i+2 > len(b) {
		return nil, 0
	}
	return b[:i], i + 2
}
