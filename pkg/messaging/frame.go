package messaging

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// A frame packs many records into one message, for services whose hot path is
// limited by the cost per message (about 3 µs in the client, whatever the size).
// The whole frame is one message to Pulsar: one key, one acknowledgement, one
// place in the order. Pack records of one partition only.
//
// Frames are public because both ends are services: one packs them, another one, or a tool, reads
// them. No service of this repository does so far: docs/adr/0004-frames.md.
//
// Byte layout, version 1. Integers named uvarint and varint are those of
// encoding/binary (LEB128, zig-zag for signed); fixed-width ones are big endian.
//
//	header, 16 bytes
//	  0  4 bytes  magic "AVFR"
//	  4  1 byte   version, 1
//	  5  1 byte   length of the header, 16: readers skip what they do not know
//	  6  2 bytes  flags, 0: readers reject a flag they do not know
//	  8  4 bytes  number of records
//	 12  4 bytes  CRC-32C (Castagnoli) of everything behind the header
//	then each record
//	  uvarint     length of what follows of this record
//	  1 byte      bit 0: payload present (else a null value)
//	              bit 1: event time present
//	  uvarint     length of the key, then the key
//	  varint      event time in ms since the epoch, if present
//	  uvarint     number of properties, at most 65,535, then each: uvarint length and
//	              name, uvarint length and value
//	  the rest    the payload
//
// DeliverAt and Partition are not part of a frame.
const (
	frameMagic   = "AVFR"
	frameVersion = 1
	frameHeader  = 16

	framePayload   = 1 << 0
	frameEventTime = 1 << 1

	// frameProperties bounds what one record's properties cost in memory, where one takes two
	// bytes in a frame and fifty in a map.
	frameProperties = 1<<16 - 1
)

// ErrNotFrame is returned for bytes that do not begin as a frame does.
var ErrNotFrame = errors.New("messaging: not a frame")

// ErrBadFrame is returned for a frame that is damaged or of an unknown version.
var ErrBadFrame = errors.New("messaging: bad frame")

// FrameWriter builds one frame after another. The zero value is ready to use. It
// is not safe for concurrent use.
type FrameWriter struct {
	buf   []byte
	count uint32
}

// Reset forgets what was added. A non-nil buf becomes the writer's buffer.
func (w *FrameWriter) Reset(buf []byte) {
	if buf == nil {
		buf = w.buf
	}
	w.buf, w.count = buf[:0], 0
}

// Add appends r to the frame. r may be reused when Add returns. Frames of records with more
// than 65,535 properties cannot be read.
func (w *FrameWriter) Add(r *Record) {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, make([]byte, frameHeader)...)
	}
	var ms int64
	flags := byte(0)
	n := 1 + uvarintLen(uint64(len(r.Key))) + len(r.Key)
	if r.Payload != nil {
		flags |= framePayload
	}
	if !r.EventTime.IsZero() {
		flags |= frameEventTime
		ms = r.EventTime.UnixMilli()
		n += uvarintLen(uint64(ms)<<1 ^ uint64(ms>>63))
	}
	n += uvarintLen(uint64(len(r.Properties)))
	for k, v := range r.Properties {
		n += uvarintLen(uint64(len(k))) + len(k) + uvarintLen(uint64(len(v))) + len(v)
	}
	n += len(r.Payload)

	b := binary.AppendUvarint(w.buf, uint64(n))
	b = append(b, flags)
	b = appendString(b, r.Key)
	if flags&frameEventTime != 0 {
		b = binary.AppendVarint(b, ms)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Properties)))
	for k, v := range r.Properties {
		b = appendString(appendString(b, k), v)
	}
	w.buf = append(b, r.Payload...)
	w.count++
}

// Len is the number of records added.
func (w *FrameWriter) Len() int { return int(w.count) }

// Size is the frame's size in bytes so far.
func (w *FrameWriter) Size() int { return max(len(w.buf), frameHeader) }

// Bytes completes the header and returns the frame. It stays valid until the next
// Reset or Add; hand the writer another buffer (Reset) to keep it longer.
func (w *FrameWriter) Bytes() []byte {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, make([]byte, frameHeader)...)
	}
	h := w.buf[:frameHeader]
	copy(h, frameMagic)
	h[4], h[5] = frameVersion, frameHeader
	binary.BigEndian.PutUint16(h[6:], 0)
	binary.BigEndian.PutUint32(h[8:], w.count)
	binary.BigEndian.PutUint32(h[12:], crc32.Checksum(w.buf[frameHeader:], castagnoli()))
	return w.buf
}

// IsFrame reports whether b begins as a frame does.
func IsFrame(b []byte) bool { return len(b) >= frameHeader && string(b[:4]) == frameMagic }

// ReadFrame calls each for every record of the frame in b, in order, and stops at
// the first error, which it returns. The record and everything in it alias b and
// are valid during the call only; Properties is nil where a record has none.
// Errors are ErrNotFrame and ErrBadFrame, with what was found; the checksum is
// verified before the first record is given out. No memory is allocated because of a
// length that b does not hold: all records share one map of properties.
func ReadFrame(b []byte, each func(*Record) error) error {
	if !IsFrame(b) {
		return ErrNotFrame
	}
	header := int(b[5])
	switch {
	case b[4] != frameVersion:
		return fmt.Errorf("%w: version %d, this reader knows %d", ErrBadFrame, b[4], frameVersion)
	case header < frameHeader || header > len(b):
		return fmt.Errorf("%w: header of %d bytes", ErrBadFrame, header)
	case binary.BigEndian.Uint16(b[6:]) != 0:
		return fmt.Errorf("%w: unknown flags %#x", ErrBadFrame, binary.BigEndian.Uint16(b[6:]))
	case crc32.Checksum(b[header:], castagnoli()) != binary.BigEndian.Uint32(b[12:]):
		return fmt.Errorf("%w: checksum mismatch", ErrBadFrame)
	}
	count := binary.BigEndian.Uint32(b[8:])
	rest := b[header:]
	var r Record
	var properties map[string]string // one for all records: they are valid during the call only
	for i := range count {
		n, body, ok := uvarint(rest)
		if !ok || n > uint64(len(body)) {
			return fmt.Errorf("%w: record %d of %d cut short", ErrBadFrame, i, count)
		}
		rest = body[n:]
		clear(properties)
		if !r.parse(body[:n:n], properties) {
			return fmt.Errorf("%w: record %d of %d malformed", ErrBadFrame, i, count)
		}
		if r.Properties != nil {
			properties = r.Properties
		}
		if err := each(&r); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes after the last record", ErrBadFrame, len(rest))
	}
	return nil
}

// parse fills r from one record's bytes and reports whether they are well formed. spare holds
// the properties, if there are any.
func (r *Record) parse(b []byte, spare map[string]string) bool {
	*r = Record{}
	if len(b) == 0 {
		return false
	}
	flags := b[0]
	key, b, ok := cutString(b[1:])
	if !ok {
		return false
	}
	r.Key = key
	if flags&frameEventTime != 0 {
		ms, n := binary.Varint(b)
		if n <= 0 {
			return false
		}
		r.EventTime, b = time.UnixMilli(ms), b[n:]
	}
	props, b, ok := uvarint(b)
	if !ok || props > min(uint64(len(b))/2, frameProperties) { // each takes two bytes at least
		return false
	}
	if props > 0 {
		if spare == nil {
			spare = make(map[string]string)
		}
		r.Properties = spare
	}
	for range props {
		var k, v string
		if k, b, ok = cutString(b); !ok {
			return false
		}
		if v, b, ok = cutString(b); !ok {
			return false
		}
		r.Properties[k] = v
	}
	if flags&framePayload != 0 {
		r.Payload = b[:len(b):len(b)]
		return true
	}
	return len(b) == 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// cutString takes a length and that many bytes from b.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	n, b, ok := uvarint(b)
	if !ok || n > uint64(len(b)) {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}

func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 || v > math.MaxInt {
		return 0, nil, false
	}
	return v, b[n:], true
}

func uvarintLen(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
