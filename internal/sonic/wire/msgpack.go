package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errMsgpack is the error for input that is not a MessagePack array or string. Sonic uses no other
// kinds.
var errMsgpack = errors.New("malformed msgpack")

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

// readLength reads a length of width bytes.
func readLength(b []byte, width int) (n int, rest []byte, err error) {
	if len(b) < width {
		return 0, nil, fmt.Errorf("%w: it ends within a length", errMsgpack)
	}
	for _, c := range b[:width] {
		n = n<<8 | int(c)
	}
	return n, b[width:], nil
}

// readArray reads the header of an array of n values. It returns an error if n exceeds the number
// of remaining bytes.
func readArray(b []byte) (n int, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, fmt.Errorf("%w: it ends before an array", errMsgpack)
	}
	switch c := b[0]; {
	case c&0xf0 == 0x90:
		n, rest = int(c&0x0f), b[1:]
	case c == 0xdc:
		n, rest, err = readLength(b[1:], 2)
	case c == 0xdd:
		n, rest, err = readLength(b[1:], 4)
	default:
		return 0, nil, fmt.Errorf("%w: byte %#x where an array begins", errMsgpack, c)
	}
	if err == nil && n > len(rest) {
		return 0, nil, fmt.Errorf("%w: an array of %d values in %d bytes", errMsgpack, n, len(rest))
	}
	return n, rest, err
}

// readString reads a string. It shares memory with b.
func readString(b []byte) (s, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, fmt.Errorf("%w: it ends before a string", errMsgpack)
	}
	var n int
	switch c := b[0]; {
	case c&0xe0 == 0xa0:
		n, rest = int(c&0x1f), b[1:]
	case c == 0xd9:
		n, rest, err = readLength(b[1:], 1)
	case c == 0xda:
		n, rest, err = readLength(b[1:], 2)
	case c == 0xdb:
		n, rest, err = readLength(b[1:], 4)
	default:
		return nil, nil, fmt.Errorf("%w: byte %#x where a string begins", errMsgpack, c)
	}
	if err != nil {
		return nil, nil, err
	}
	if n > len(rest) {
		return nil, nil, fmt.Errorf("%w: a string of %d bytes in %d bytes", errMsgpack, n, len(rest))
	}
	return rest[:n], rest[n:], nil
}
