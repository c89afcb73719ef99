package remotewrite

import (
	"encoding/binary"
	"math"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// usualField reads a field of the most frequent form: bytes, with a tag of one byte and a length of
// one or two. It reports false for any other field, which nextField can read.
func usualField(src []byte) (number uint32, data, rest []byte, ok bool) {
	if len(src) < 3 || src[0]&0x87 != batch.WireBytes || src[0] < 1<<3 {
		return 0, nil, nil, false
	}
	n, at := int(src[1]), 2
	if n >= 0x80 {
		if src[2] >= 0x80 {
			return 0, nil, nil, false
		}
		n, at = n&0x7f|int(src[2])<<7, 3
	}
	if n > len(src)-at {
		return 0, nil, nil, false
	}
	return uint32(src[0] >> 3), src[at : at+n], src[at+n:], true
}

// bytesField reads any field. For a field of bytes ok is true, and data has the bytes. Otherwise fc
// has the field.
func bytesField(fc *easyproto.FieldContext, src []byte) (number uint32, data, rest []byte, ok bool, err error) {
	if number, data, rest, ok = usualField(src); ok {
		return number, data, rest, true, nil
	}
	if rest, err = nextField(fc, src); err != nil {
		return 0, nil, nil, false, err
	}
	data, ok = fc.MessageData()
	return fc.FieldNum, data, rest, ok, nil
}

// usualSample reads a Sample in the form that encoders write: value, timestamp and, if starts is
// true, start, each only if it is not zero. It reports false for any other form.
func usualSample(src []byte, starts bool) (s batch.Sample, ok bool) {
	if len(src) >= 9 && src[0] == 1<<3|batch.WireFixed64 {
		s.Value, src = math.Float64frombits(binary.LittleEndian.Uint64(src[1:])), src[9:]
	}
	if len(src) > 0 && src[0] == 2<<3|batch.WireVarint {
		v, n := binary.Uvarint(src[1:])
		if n <= 0 {
			return s, false
		}
		s.Timestamp, src = int64(v), src[1+n:]
	}
	if starts && len(src) > 0 && src[0] == 3<<3|batch.WireVarint {
		v, n := binary.Uvarint(src[1:])
		if n <= 0 {
			return s, false
		}
		s.Start, src = int64(v), src[1+n:]
	}
	return s, len(src) == 0
}
