package wire

import (
	"encoding/binary"
	"fmt"
)

// appendArray appends the header of an array of n values.
func appendArray(dst []byte, n int) []byte {
	switch {
	case n < 16:
		return append(dst, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(dst, 0xdd), uint32(n))
	}
}

// appendString appends a string of less than 4 GiB.
func appendString[T string | []byte](dst []byte, s T) []byte {
	n := len(s)
	switch {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

// reader reads MessagePack arrays and strings: Sonic uses no other kinds. It keeps the first error,
// which is [ErrPayload], and then returns zero values.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.rest, r.err = nil, fmt.Errorf("%w: "+format, append([]any{ErrPayload}, args...)...)
	}
}

// number reads a number of width bytes.
func (r *reader) number(width int) (n int) {
	if len(r.rest) < width {
		r.fail("it ends too early")
		return 0
	}
	for _, c := range r.rest[:width] {
		n = n<<8 | int(c)
	}
	r.rest = r.rest[width:]
	return n
}

// array reads the header of an array of n values.
func (r *reader) array() (n int) {
	switch c := r.number(1); {
	case r.err != nil:
	case c&0xf0 == 0x90:
		n = c & 0x0f
	case c == 0xdc:
		n = r.number(2)
	case c == 0xdd:
		n = r.number(4)
	default:
		r.fail("byte %#x where an array begins", c)
	}
	return r.bounded(n)
}

// text reads a string. It shares memory with the input.
func (r *reader) text() (s []byte) {
	n := 0
	switch c := r.number(1); {
	case r.err != nil:
	case c&0xe0 == 0xa0:
		n = c & 0x1f
	case c == 0xd9:
		n = r.number(1)
	case c == 0xda:
		n = r.number(2)
	case c == 0xdb:
		n = r.number(4)
	default:
		r.fail("byte %#x where a string begins", c)
	}
	n = r.bounded(n)
	s, r.rest = r.rest[:n], r.rest[n:]
	return s
}

// bounded returns n, the length of what follows, which has at least n bytes.
func (r *reader) bounded(n int) int {
	if n > len(r.rest) {
		r.fail("length %d where %d bytes follow", n, len(r.rest))
		return 0
	}
	return n
}

func (r *reader) id() ID {
	id, err := ParseID(string(r.text()))
	if err != nil {
		r.fail("%w", err)
	}
	return id
}

// end returns the error, also for input that goes on.
func (r *reader) end() error {
	if len(r.rest) > 0 {
		r.fail("%d bytes after the last value", len(r.rest))
	}
	return r.err
}
