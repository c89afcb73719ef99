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
type decoder struct {
	*batch.Batch
	maxExpanded int // limit of Batch.Expanded
}

func newDecoder(b *batch.Batch, l *Limits, maxExpanded int) decoder {
	b.Elements.Limit = int(l.MemoryBytes)
	b.Bounds = batch.LabelBounds{Name: int(l.LabelNameBytes), Value: int(l.LabelValueBytes), Labels: l.LabelsPerSeries}
	return decoder{b, maxExpanded}
}

// fieldReader reads the fields of a message. A caller sets ok to false if a field has the wrong
// wire type: then next ends with errWireType.
type fieldReader struct {
	easyproto.FieldContext
	rest []byte
	ok   bool
	err  error
}

func readFields(src []byte) fieldReader { return fieldReader{rest: src, ok: true} }

// next reads a field. It returns false at the end or after an error.
func (f *fieldReader) next() bool {
	if !f.ok && f.err == nil {
		f.err = errWireType
	}
	if f.err != nil || len(f.rest) == 0 {
		return false
	}
	f.rest, f.err = nextField(&f.FieldContext, f.rest)
	return f.err == nil
}

// nextField reads a field. It returns an error for field numbers that protobuf does not allow.
func nextField(fc *easyproto.FieldContext, src []byte) ([]byte, error) {
	rest, err := fc.NextField(src)
	if err == nil && (fc.FieldNum == 0 || fc.FieldNum > 1<<29-1) {
		err = errFieldNumber
	}
	return rest, err
}

// shortField reads a field of bytes with a tag of one byte and a length of one or two, the most
// frequent form. It reports false for any other field.
func shortField(src []byte) (number uint32, data, rest []byte, ok bool) {
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

// bytesField reads any field. data is nil for a field that is not bytes: then fc has the value. It
// is faster than fieldReader for the frequent messages, whose fields are mostly bytes.
func bytesField(fc *easyproto.FieldContext, src []byte) (number uint32, data, rest []byte, err error) {
	number, data, rest, ok := shortField(src)
	if ok {
		return number, data, rest, nil
	}
	if rest, err = nextField(fc, src); err != nil {
		return 0, nil, nil, err
	}
	data, _ = fc.MessageData()
	return fc.FieldNum, data, rest, nil
}

// beginSeries adds a series without elements.
func (b decoder) beginSeries() *batch.Series {
	b.Series = append(b.Series, batch.Series{
		Labels: batch.Start(b.Labels), Refs: batch.Start(b.Refs), Samples: batch.Start(b.Samples),
		Exemplars: batch.Start(b.Exemplars), Histograms: batch.Start(b.Histograms),
	})
	return &b.Series[len(b.Series)-1]
}

// endSeries adds the elements to the series that were decoded since beginSeries.
func (b decoder) endSeries(s *batch.Series) {
	s.Labels, s.Samples = batch.Until(s.Labels, b.Labels), batch.Until(s.Samples, b.Samples)
	s.Exemplars, s.Histograms = batch.Until(s.Exemplars, b.Exemplars), batch.Until(s.Histograms, b.Histograms)
}

// plainSample reads a Sample in the form that encoders write: value, timestamp and, if starts is
// true, start, each only if it is not zero. It reports false for any other form.
func plainSample(src []byte, starts bool) (s batch.Sample, ok bool) {
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
func (b decoder) decodeSample(src []byte, starts bool) error {
	if err := b.Elements.Charge(batch.SampleBytes); err != nil {
		return err
	}
	s, ok := plainSample(src, starts)
	if ok {
		b.Samples = append(b.Samples, s)
		return nil
	}
	s = batch.Sample{}
	f := readFields(src)
	for f.next() {
		switch {
		case f.FieldNum == 1:
			s.Value, f.ok = f.Double()
		case f.FieldNum == 2:
			s.Timestamp, f.ok = f.Int64()
		case f.FieldNum == 3 && starts:
			s.Start, f.ok = f.Int64()
		}
	}
	b.Samples = append(b.Samples, s)
	return f.err
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
func (f *fieldReader) enum() (int32, bool) {
	v, ok := f.Uint64()
	return int32(v), ok
}

// sint32 reads a zigzag integer as generated code does: it keeps only 32 bits.
func (f *fieldReader) sint32() (int32, bool) {
	v, ok := f.Uint64()
	u := uint32(v)
	return int32(u>>1) ^ -int32(u&1), ok
}

// text returns data as a string without copying it.
func text(data []byte) string {
	return unsafe.String(unsafe.SliceData(data), len(data)) //nolint:gosec // the body outlives the batch, see workspace
}
