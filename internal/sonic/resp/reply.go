package resp

import (
	"bytes"
	"errors"
)

const (
	// maxDepth of nested replies. Redis nests a few levels. Replies of users' scripts are nested as deep as the C stack of Lua allows: 8,000 values.
	maxDepth = 1 << 14
	// maxReplyLine bounds a line with a length. Simple strings and errors, which scripts of users make, have no bound but their script's.
	maxReplyLine = 1 << 10
	// keptDepth is how many levels a Scanner keeps memory for.
	keptDepth = 64
)

var (
	errReplyType   = errors.New("a reply of an unknown type")
	errReplyLength = errors.New("a reply with an invalid length")
	errReplyDepth  = errors.New("a reply that is nested too deeply")
	errReplyLine   = errors.New("a reply with a line that is too long")
)

// A Scanner finds where a reply ends. The zero value waits for the beginning of one. An attribute (RESP3's '|') belongs
// to the reply that it precedes. It is not safe for concurrent use.
type Scanner struct {
	skip   int64   // bytes of a bulk string that are still due, with its "\r\n"
	inLine bool    // the rest of a line is due that says nothing more
	due    []int64 // values that are still due at each level
}

// Scan consumes bytes from the beginning of b: n of them belong to the reply, and done tells whether it ends there. When
// it is not done, call Scan again with what follows those n bytes; up to a line of b may be left when it is not whole.
// An error is final: the connection is of no use any more.
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

// value notes a line that begins a value, and reports whether the whole reply ends with it.
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
			size = 2*size + 1 // and the value that it is about
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

// isSimple reports whether a value that begins so is a line and no more.
func isSimple(letter byte) bool {
	switch letter {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	}
	return false
}

// ended notes that a value has ended, and reports whether the whole reply has.
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

// Length returns the length of the reply at the beginning of b, which holds all of it.
func Length(b []byte) (int, error) {
	var s Scanner
	n, done, err := s.Scan(b)
	if err == nil && !done {
		err = errReplyLength
	}
	return n, err
}

// Elements returns the elements of an aggregate reply, each with its framing; nil for any other reply and for null.
// reply is whole, as a Scanner told.
func Elements(reply []byte) ([][]byte, error) {
	text, next := line(reply)
	if next == 0 || len(text) < 2 {
		return nil, nil
	}
	switch text[0] {
	case '*', '~', '>', '%':
	default:
		return nil, nil
	}
	count, ok := ParseInt(text[1:])
	if !ok || count <= 0 {
		return nil, nil
	}
	if text[0] == '%' {
		count *= 2
	}
	elements := make([][]byte, 0, min(count, int64(len(reply))))
	for rest := reply[next:]; count > 0; count-- {
		n, err := Length(rest)
		if err != nil {
			return nil, err
		}
		elements = append(elements, rest[:n])
		rest = rest[n:]
	}
	return elements, nil
}

// Text returns what a simple value or a bulk string says; nil for null and aggregates.
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
