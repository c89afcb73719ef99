package remotewrite

import (
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

var (
	errWireType    = errors.New("a field has the wrong wire type")
	errFieldNumber = errors.New("a field number is out of range")
)

// decoder fills a batch. Code that both protocols use is in fields.go and decode_histogram.go.
type decoder struct{ *batch.Batch }

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

// decodeSample reads a sample. starts says whether the protocol has start timestamps.
func (b decoder) decodeSample(src []byte, starts bool) (err error) {
	if err := b.Elements.Charge(batch.SampleBytes); err != nil {
		return err
	}
	s, ok := usualSample(src, starts)
	if ok {
		b.Samples = append(b.Samples, s)
		return nil
	}
	s = batch.Sample{}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			s.Value, ok = fc.Double()
		case 2:
			s.Timestamp, ok = fc.Int64()
		case 3:
			if starts {
				s.Start, ok = fc.Int64()
			}
		}
		if !ok {
			return errWireType
		}
	}
	b.Samples = append(b.Samples, s)
	return nil
}

// nextField reads a field. It returns an error for field numbers that protobuf does not allow.
func nextField(fc *easyproto.FieldContext, src []byte) ([]byte, error) {
	rest, err := fc.NextField(src)
	if err == nil && (fc.FieldNum == 0 || fc.FieldNum > 1<<29-1) {
		err = errFieldNumber
	}
	return rest, err
}

// malformed returns the error for a part that cannot be decoded. It returns an error that already
// is a refusal, for instance because of the size, unchanged.
func malformed(what string, err error) error {
	if refused := (*refusal.Error)(nil); errors.As(err, &refused) {
		return err
	}
	return refusal.Invalid("malformed_protobuf", "cannot decode %s: %v", what, err)
}

// enum reads an enumeration as generated code does: it keeps only 32 bits.
func enum(fc *easyproto.FieldContext) (int32, bool) {
	v, ok := fc.Uint64()
	return int32(v), ok
}

// sint32 reads a zigzag integer as generated code does: it keeps only 32 bits.
func sint32(fc *easyproto.FieldContext) (int32, bool) {
	v, ok := fc.Uint64()
	u := uint32(v)
	return int32(u>>1) ^ -int32(u&1), ok
}

// text returns data as a string without copying it.
func text(data []byte) string {
	return unsafe.String(unsafe.SliceData(data), len(data)) //nolint:gosec // the body outlives the batch, see workspace
}
