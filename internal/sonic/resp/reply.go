package resp

import (
	"bytes"
	"errors"
)

const (
	// maxDepth is the maximum depth of nested replies. Redis itself nests a few levels. Users'
	// scripts can nest as deep as Lua's C stack allows: 8,000 values.
	maxDepth = 1 << 14
	// maxReplyLine is the maximum length of a line that contains a length. It does not apply to
	// simple strings and errors, because users' scripts can make them arbitrarily long.
	maxReplyLine = 1 << 10
	// keptDepth is for how many levels a Scanner keeps memory between replies.
	keptDepth = 64
)

var (
	errReplyType   = errors.New("a reply of an unknown type")
	errReplyLength = errors.New("a reply with an invalid length")
	errReplyDepth  = errors.New("a reply that is nested too deeply")
	errReplyLine   = errors.New("a reply with a line that is too long")
)

// Scanner finds the end of a reply. The zero value is at the beginning of a reply. An attribute
// (RESP3's '|') belongs to the reply that it precedes. A Scanner is not safe for concurrent use.
type Scanner struct {
	skip   int64   // bytes left of a bulk string, including its "\r\n"
	inLine bool    // the rest of a simple value's line is still to come
	due    []int64 // number of values left at each level
}

// Scan consumes n bytes from the beginning of b, which belong to the reply. done says whether the
// reply ends there. If not, call Scan again with the bytes that follow. Scan does not consume an
// incomplete line at the end of b. After an error the connection cannot be used any more.
func (s *Scanner) Scan(b []byte) (n int, done bool, err error) {
	for n < len(b) {
		if s.skip > 0 {
			step := min(s.skip, int64(len(b)-n))
			s.skip -= step
			n += int(step)
			if s.skip > 0 {
				return n, false, nil
			}
			if s.ended() {
				return n, true, nil
			}
			continue
		}
		if s.inLine {
			i := bytes.IndexByte(b[n:], '\r')
			if i < 0 {
				return len(b), false, nil
			}
			if n += i; n+2 > len(b) {
				return n, false, nil
			}
			n += 2
			s.inLine = false
			if s.ended() {
				return n, true, nil
			}
			continue
		}
		text, next := line(b[n:])
		if next == 0 {
			if isSimple(b[n]) {
				s.inLine = true
				continue
			}
			if len(b)-n > maxReplyLine {
				return n, false, errReplyLine
			}
			return n, false, nil
		}
		if len(text) == 0 {
			return n, false, errReplyType
		}
		ended, err := s.value(text)
		if err != nil {
			return n, false, err
		}
		n += next
		if ended {
			return n, true, nil
		}
	}
	return n, false, nil
}

// value handles the first line of a value, and reports whether the whole reply ends with it.
func (s *Scanner) value(text []byte) (ended bool, err error) {
	if isSimple(text[0]) {
		return s.ended(), nil
	}
	switch text[0] {
	case '$', '=', '!':
		size, ok := ParseInt(text[1:])
		switch {
		case !ok || size < -1:
			return false, errReplyLength
		case size == -1:
			return s.ended(), nil
		}
		s.skip = size + 2
		return false, nil
	case '*', '~', '>', '%', '|':
		size, ok := ParseInt(text[1:])
		if !ok || size < -1 || size > 1<<40 {
			return false, errReplyLength
		}
		switch text[0] {
		case '%':
			size *= 2
		case '|':
			size = 2*size + 1 // and the value after the attribute
		}
		if size <= 0 {
			return s.ended(), nil
		}
		if len(s.due) == maxDepth {
			return false, errReplyDepth
		}
		s.due = append(s.due, size)
		return false, nil
	}
	return false, errReplyType
}

// isSimple reports whether a value that begins with letter is a single line.
func isSimple(letter byte) bool {
	switch letter {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	}
	return false
}

// ended records that a value has ended, and reports whether the whole reply has ended.
func (s *Scanner) ended() bool {
	for last := len(s.due) - 1; last >= 0; last-- {
		s.due[last]--
		if s.due[last] > 0 {
			return false
		}
		s.due = s.due[:last]
	}
	if cap(s.due) > keptDepth {
		s.due = nil
	}
	return true
}

// Length returns the length of the value at the beginning of b with its framing, 0 if b does not
// have all of it.
func Length(b []byte) int {
	var s Scanner
	n, done, err := s.Scan(b)
	if err != nil || !done {
		return 0
	}
	return n
}

// Elements returns the elements of an aggregate reply, each with its framing. It returns nil for
// any other reply and for null. reply must be complete.
func Elements(reply []byte) [][]byte {
	text, next := line(reply)
	if next == 0 || len(text) < 2 {
		return nil
	}
	switch text[0] {
	case '*', '~', '>', '%':
	default:
		return nil
	}
	count, ok := ParseInt(text[1:])
	if !ok || count <= 0 {
		return nil
	}
	if text[0] == '%' {
		count *= 2
	}
	elements := make([][]byte, 0, min(count, int64(len(reply))))
	for rest := reply[next:]; count > 0; count-- {
		n := Length(rest)
		if n == 0 {
			return nil
		}
		elements = append(elements, rest[:n])
		rest = rest[n:]
	}
	return elements
}

// Text returns the content of a simple value or a bulk string; nil for null and aggregates.
func Text(value []byte) []byte {
	text, next := line(value)
	if next == 0 || len(text) == 0 {
		return nil
	}
	switch text[0] {
	case '$', '=', '!':
		size, ok := ParseInt(text[1:])
		if !ok || size < 0 || int64(len(value)-next) < size {
			return nil
		}
		return value[next : next+int(size)]
	case '*', '~', '>', '%', '|', '_':
		return nil
	}
	return text[1:]
}

// FirstWord returns the first element of an aggregate if it is a string.
func FirstWord(reply []byte) []byte {
	i := bytes.IndexByte(reply, '\n')
	if i < 0 || i+1 >= len(reply) {
		return nil
	}
	return Text(reply[i+1:])
}
