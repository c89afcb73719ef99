package remotewrite

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/VictoriaMetrics/easyproto"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

var (
	errWireType    = errors.New("a field has the wrong wire type")
	errFieldNumber = errors.New("a field number is out of range")
	errForeign     = errors.New("no field of prometheus.WriteRequest in it: is it a remote write 2.0 body?")
)

// decoder fills a batch. Code that both protocols use is in decode_v1.go.
type decoder struct{ *batch.Batch }

// DecodeV1 decodes a prometheus.WriteRequest. It ignores unknown fields, as protobuf requires, but
// a body with only unknown fields is an error.
func DecodeV1(into *batch.Batch, body []byte, l Limits) error {
	b := decoder{into}
	b.Body, b.Elements.Limit = body, int(l.MemoryBytes)
	known := len(body) == 0 // an empty request is valid
	if b.Form.Symbolic {
		b.Bounds = boundsOf(&l)
		if err := b.BeginSymbols(); err != nil {
			return err
		}
	}
	var fc easyproto.FieldContext
	for rest := body; len(rest) > 0; {
		from := len(body) - len(rest)
		var number uint32
		var data []byte
		var ok bool
		var err error
		if number, data, rest, ok, err = bytesField(&fc, rest); err != nil {
			return malformed("WriteRequest", err)
		}
		switch number {
		case 1:
			if !ok {
				return malformed("WriteRequest.timeseries", errWireType)
			}
			if len(b.Series) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if err := b.Elements.Charge(batch.SeriesBytes); err != nil {
				return err
			}
			if err := b.decodeSeriesV1(data); err != nil {
				return malformed("TimeSeries", err)
			}
			to := len(body) - len(rest)
			raw := &b.Series[len(b.Series)-1].Raw
			raw.From, raw.To, raw.Head = int32(from), int32(to), uint8(to-from-len(data))
			raw.Copyable = raw.Copyable && int(raw.Head) == 1+protowire.SizeVarint(uint64(len(data)))
		case 3:
			if !ok {
				return malformed("WriteRequest.metadata", errWireType)
			}
			if len(b.Metadata) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d metadata entries", l.Series)
			}
			if err := b.Elements.Charge(batch.MetadataBytes); err != nil {
				return err
			}
			if err := b.decodeMetadataV1(data); err != nil {
				return malformed("MetricMetadata", err)
			}
		default:
			continue
		}
		known = true
	}
	if !known {
		return malformed("body", errForeign)
	}
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

func (b decoder) decodeSeriesV1(src []byte) (err error) {
	s := batch.Series{
		Labels: batch.Start(b.Labels), Refs: batch.Start(b.Refs), Samples: batch.Start(b.Samples), Exemplars: batch.Start(b.Exemplars), Histograms: batch.Start(b.Histograms),
	}
	whole, size, known := src, len(src), false
	if b.Form.Symbolic {
		src, known, err = b.plainRefsV1(src)
	} else {
		b.Labels, src, err = b.plainLabelsV1(b.Labels, src)
	}
	if err != nil {
		return err
	}
	s.Raw.Labels, s.Raw.PlainLabels = int32(size-len(src)), true
	if src, err = b.usualSamples(src); err != nil {
		return err
	}
	s.Raw.Copyable = len(src) == 0
	var fc easyproto.FieldContext
	for len(src) > 0 {
		var number uint32
		var data []byte
		var ok bool
		if number, data, src, ok, err = bytesField(&fc, src); err != nil {
			return err
		}
		if number < 1 || number > 4 {
			continue
		}
		if !ok {
			return errWireType
		}
		switch number {
		case 1:
			if b.Form.Symbolic {
				err = b.appendPairV1(data)
			} else {
				b.Labels, err = b.appendLabelV1(b.Labels, data)
			}
			s.Raw.Labels, s.Raw.PlainLabels, known = int32(size-len(src)), false, false
		case 2:
			err = b.decodeSample(data, false)
		case 3:
			err = b.decodeExemplarV1(data)
		case 4:
			err = b.decodeHistogram(data, false)
		}
		if err != nil {
			return err
		}
	}
	s.Labels, s.Samples = batch.Until(s.Labels, b.Labels), batch.Until(s.Samples, b.Samples)
	s.Exemplars, s.Histograms = batch.Until(s.Exemplars, b.Exemplars), batch.Until(s.Histograms, b.Histograms)
	if b.Form.Symbolic {
		if err := b.endRefsV1(&s, whole, known); err != nil {
			return err
		}
	}
	b.Series = append(b.Series, s)
	return nil
}

// plainLabelsV1 decodes labels at the beginning of src as long as they have the usual form, and
// returns the rest. It decodes most of a request. The usual form is what an encoder writes for a
// name and a value with together less than 124 bytes.
func (b decoder) plainLabelsV1(dst []batch.Label, src []byte) ([]batch.Label, []byte, error) {
	room, err := b.Elements.LabelRoom()
	if err != nil {
		return dst, src, err
	}
	from := len(dst)
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		value := 4 + int(field[3]) // position of the value's tag
		if value+2 > end || field[value] != 2<<3|2 || value+2+int(field[value+1]) != end {
			break
		}
		if len(dst)-from == room {
			b.Elements.UseLabels(room)
			if room, err = b.Elements.LabelRoom(); err != nil {
				return dst, src, err
			}
			from = len(dst)
		}
		dst = append(dst, batch.Label{Name: text(field[4:value]), Value: text(field[value+2 : end])})
		src = src[end:]
	}
	b.Elements.UseLabels(len(dst) - from)
	return dst, src, nil
}

// appendLabelV1 decodes a Label.
func (b decoder) appendLabelV1(dst []batch.Label, src []byte) ([]batch.Label, error) {
	if err := b.Elements.Charge(batch.LabelBytes); err != nil {
		return dst, err
	}
	l, err := decodeLabelV1(src)
	return append(dst, l), err
}

// appendPairV1 decodes a Label into references.
func (b decoder) appendPairV1(src []byte) error {
	l, err := decodeLabelV1(src)
	if err == nil {
		err = b.AddPair(l.Name, l.Value)
	}
	return err
}

func decodeLabelV1(src []byte) (l batch.Label, err error) {
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return l, err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			l.Name, ok = fc.String()
		case 2:
			l.Value, ok = fc.String()
		}
		if !ok {
			return l, errWireType
		}
	}
	return l, nil
}

// text returns data as a string without copying it.
func text(data []byte) string {
	return unsafe.String(unsafe.SliceData(data), len(data)) //nolint:gosec // the body outlives the batch, see workspace
}

// usualSamples decodes samples as long as they are fields of the usual form, and returns the rest.
func (b decoder) usualSamples(src []byte) ([]byte, error) {
	for len(src) > 0 {
		number, data, rest, ok := usualField(src)
		if !ok || number != 2 {
			return src, nil
		}
		s, ok := usualSample(data, false)
		if !ok {
			return src, nil
		}
		if err := b.Elements.Charge(batch.SampleBytes); err != nil {
			return src, err
		}
		b.Samples, src = append(b.Samples, s), rest
	}
	return src, nil
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

func (b decoder) decodeExemplarV1(src []byte) (err error) {
	if err := b.Elements.Charge(batch.ExemplarBytes); err != nil {
		return err
	}
	e := batch.Exemplar{Labels: batch.Start(b.ExemplarLabels)}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			var data []byte
			if data, ok = fc.MessageData(); ok {
				b.ExemplarLabels, err = b.appendLabelV1(b.ExemplarLabels, data)
			}
		case 2:
			e.Value, ok = fc.Double()
		case 3:
			e.Timestamp, ok = fc.Int64()
		}
		if !ok {
			return errWireType
		}
		if err != nil {
			return err
		}
	}
	e.Labels = batch.Until(e.Labels, b.ExemplarLabels)
	b.Exemplars = append(b.Exemplars, e)
	return nil
}

func (b decoder) decodeMetadataV1(src []byte) (err error) {
	var m batch.Metadata
	var kind int32
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			kind, ok = enum(&fc)
		case 2:
			m.Family, ok = fc.String()
		case 4:
			m.Help, ok = fc.String()
		case 5:
			m.Unit, ok = fc.String()
		}
		if !ok {
			return errWireType
		}
	}
	m.Kind = batch.KindName(kind)
	b.Metadata = append(b.Metadata, m)
	return nil
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

var errBuckets = fmt.Errorf("histogram: %w", errWireType)

// decodeHistogram decodes a Histogram. It is the same in both versions, except for the start
// timestamp of version 2.
func (b decoder) decodeHistogram(src []byte, starts bool) (err error) {
	if err := b.Elements.Charge(batch.HistogramBytes); err != nil {
		return err
	}
	k := &b.Buckets
	h := batch.Histogram{
		PositiveSpans: batch.Start(k.PositiveSpans), NegativeSpans: batch.Start(k.NegativeSpans),
		PositiveDeltas: batch.Start(k.PositiveDeltas), NegativeDeltas: batch.Start(k.NegativeDeltas),
		PositiveCounts: batch.Start(k.PositiveCounts), NegativeCounts: batch.Start(k.NegativeCounts),
		CustomValues: batch.Start(k.CustomValues),
	}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		if err := b.chargeBuckets(&fc); err != nil {
			return err
		}
		switch fc.FieldNum {
		case 1:
			h.Count, ok = fc.Uint64()
			h.CountKind = batch.IntCount
		case 2:
			h.CountFloat, ok = fc.Double()
			h.CountKind = batch.FloatCount
		case 3:
			h.Sum, ok = fc.Double()
		case 4:
			h.Schema, ok = sint32(&fc)
		case 5:
			h.ZeroThreshold, ok = fc.Double()
		case 6:
			h.ZeroCount, ok = fc.Uint64()
			h.ZeroKind = batch.IntCount
		case 7:
			h.ZeroFloat, ok = fc.Double()
			h.ZeroKind = batch.FloatCount
		case 8:
			k.NegativeSpans, ok, err = appendSpanV1(k.NegativeSpans, &fc)
		case 9:
			k.NegativeDeltas, ok = fc.UnpackSint64s(k.NegativeDeltas)
		case 10:
			k.NegativeCounts, ok = fc.UnpackDoubles(k.NegativeCounts)
		case 11:
			k.PositiveSpans, ok, err = appendSpanV1(k.PositiveSpans, &fc)
		case 12:
			k.PositiveDeltas, ok = fc.UnpackSint64s(k.PositiveDeltas)
		case 13:
			k.PositiveCounts, ok = fc.UnpackDoubles(k.PositiveCounts)
		case 14:
			h.ResetHint, ok = enum(&fc)
		case 15:
			h.Timestamp, ok = fc.Int64()
		case 16:
			k.CustomValues, ok = fc.UnpackDoubles(k.CustomValues)
		case 17:
			if starts {
				h.Start, ok = fc.Int64()
			}
		}
		if !ok {
			return errBuckets
		}
		if err != nil {
			return err
		}
	}
	h.PositiveSpans, h.NegativeSpans = batch.Until(h.PositiveSpans, k.PositiveSpans), batch.Until(h.NegativeSpans, k.NegativeSpans)
	h.PositiveDeltas, h.NegativeDeltas = batch.Until(h.PositiveDeltas, k.PositiveDeltas), batch.Until(h.NegativeDeltas, k.NegativeDeltas)
	h.PositiveCounts, h.NegativeCounts = batch.Until(h.PositiveCounts, k.PositiveCounts), batch.Until(h.NegativeCounts, k.NegativeCounts)
	h.CustomValues = batch.Until(h.CustomValues, k.CustomValues)
	b.Histograms = append(b.Histograms, h)
	return nil
}

// chargeBuckets charges the spans or buckets that a field of a histogram adds.
func (b decoder) chargeBuckets(fc *easyproto.FieldContext) error {
	switch fc.FieldNum {
	case 8, 11:
		return b.Elements.Charge(batch.SpanBytes)
	case 9, 12:
		data, packed := fc.MessageData()
		if !packed {
			return b.Elements.Charge(batch.BucketBytes)
		}
		n := 0
		for _, c := range data {
			if c < 0x80 { // the last byte of a number
				n++
			}
		}
		return b.Elements.Charge(n * batch.BucketBytes)
	case 10, 13, 16:
		data, _ := fc.MessageData()
		return b.Elements.Charge(max(len(data), batch.BucketBytes))
	default:
		return nil
	}
}

func appendSpanV1(dst []batch.BucketSpan, field *easyproto.FieldContext) (_ []batch.BucketSpan, ok bool, err error) {
	src, ok := field.MessageData()
	if !ok {
		return dst, false, nil
	}
	var s batch.BucketSpan
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return dst, true, err
		}
		switch fc.FieldNum {
		case 1:
			s.Offset, ok = sint32(&fc)
		case 2:
			var v uint64
			v, ok = fc.Uint64()
			s.Length = uint32(v)
		}
		if !ok {
			return dst, false, nil
		}
	}
	return append(dst, s), true, nil
}
