package nightingale

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/door"
)

var (
	errWireType    = errors.New("a field has the wrong wire type")
	errFieldNumber = errors.New("a field number is out of range")
	errForeign     = errors.New("no field of prometheus.WriteRequest in it: is it a remote write 2.0 body?")
)

// decodeV1 decodes a prometheus.WriteRequest. Fields it does not know are passed
// over, as protobuf has it, but a body of nothing else is not a WriteRequest.
func decodeV1(b *batch, body []byte, l Limits) error {
	b.body, b.elements.limit = body, int(l.MemoryBytes)
	known := len(body) == 0 // an empty request is complete with nothing written
	if b.form.symbolic {
		b.bounds = boundsOf(&l)
		if err := b.beginSymbols(); err != nil {
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
			if len(b.series) >= l.Series {
				return door.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if err := b.elements.charge(seriesBytes); err != nil {
				return err
			}
			if err := b.decodeSeriesV1(data); err != nil {
				return malformed("TimeSeries", err)
			}
			to := len(body) - len(rest)
			raw := &b.series[len(b.series)-1].raw
			raw.from, raw.to, raw.head = int32(from), int32(to), uint8(to-from-len(data))
		case 3:
			if !ok {
				return malformed("WriteRequest.metadata", errWireType)
			}
			if len(b.metadata) >= l.Series {
				return door.TooLarge("series", "the request has more than %d metadata entries", l.Series)
			}
			if err := b.elements.charge(metadataBytes); err != nil {
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

// nextField reads a field, and refuses field numbers that protobuf has not.
func nextField(fc *easyproto.FieldContext, src []byte) ([]byte, error) {
	rest, err := fc.NextField(src)
	if err == nil && (fc.FieldNum == 0 || fc.FieldNum > 1<<29-1) {
		err = errFieldNumber
	}
	return rest, err
}

// malformed explains what could not be decoded. What refuses a request for another
// reason, such as its size, stays as it is.
func malformed(what string, err error) error {
	if refused := (*door.Refusal)(nil); errors.As(err, &refused) {
		return err
	}
	return door.Invalid("malformed_protobuf", "cannot decode %s: %v", what, err)
}

func (b *batch) decodeSeriesV1(src []byte) (err error) {
	s := series{
		labels: mark(b.labels), refs: mark(b.refs), samples: mark(b.samples), exemplars: mark(b.exemplars), histograms: mark(b.histograms),
	}
	whole, size, known := src, len(src), false
	if b.form.symbolic {
		src, known, err = b.plainRefsV1(src)
	} else {
		b.labels, src, err = b.plainLabelsV1(b.labels, src)
	}
	if err != nil {
		return err
	}
	s.raw.labels, s.raw.plain = int32(size-len(src)), true
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
			if b.form.symbolic {
				err = b.appendPairV1(data)
			} else {
				b.labels, err = b.appendLabelV1(b.labels, data)
			}
			s.raw.labels, s.raw.plain, known = int32(size-len(src)), false, false
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
	s.labels, s.samples = upTo(s.labels, b.labels), upTo(s.samples, b.samples)
	s.exemplars, s.histograms = upTo(s.exemplars, b.exemplars), upTo(s.histograms, b.histograms)
	if b.form.symbolic {
		if err := b.endRefsV1(&s, whole, known); err != nil {
			return err
		}
	}
	b.series = append(b.series, s)
	return nil
}

// plainLabelsV1 decodes the labels that src begins with as long as they are of the
// usual form, and returns what follows: most of a request is decoded here. The form
// is what an encoder writes for a name and a value of together less than 124 bytes.
func (b *batch) plainLabelsV1(dst []label, src []byte) ([]label, []byte, error) {
	room, err := b.elements.labelRoom()
	if err != nil {
		return dst, src, err
	}
	from := len(dst)
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		value := 4 + int(field[3]) // where its tag stands
		if value+2 > end || field[value] != 2<<3|2 || value+2+int(field[value+1]) != end {
			break
		}
		if len(dst)-from == room {
			b.elements.useLabels(room)
			if room, err = b.elements.labelRoom(); err != nil {
				return dst, src, err
			}
			from = len(dst)
		}
		dst = append(dst, label{text(field[4:value]), text(field[value+2 : end])})
		src = src[end:]
	}
	b.elements.useLabels(len(dst) - from)
	return dst, src, nil
}

// appendLabelV1 decodes a Label.
func (b *batch) appendLabelV1(dst []label, src []byte) ([]label, error) {
	if err := b.elements.charge(labelBytes); err != nil {
		return dst, err
	}
	l, err := decodeLabelV1(src)
	return append(dst, l), err
}

// appendPairV1 decodes a Label to references.
func (b *batch) appendPairV1(src []byte) error {
	l, err := decodeLabelV1(src)
	if err == nil {
		err = b.addPair(l.name, l.value)
	}
	return err
}

func decodeLabelV1(src []byte) (l label, err error) {
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return l, err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			l.name, ok = fc.String()
		case 2:
			l.value, ok = fc.String()
		}
		if !ok {
			return l, errWireType
		}
	}
	return l, nil
}

// text is data as a string without a copy.
func text(data []byte) string {
	return unsafe.String(unsafe.SliceData(data), len(data)) //nolint:gosec // the body outlives the batch, see workspace
}

// decodeSample reads a sample, and its start where the protocol has one.
func (b *batch) decodeSample(src []byte, starts bool) (err error) {
	if err := b.elements.charge(sampleBytes); err != nil {
		return err
	}
	s, ok := usualSample(src, starts)
	if ok {
		b.samples = append(b.samples, s)
		return nil
	}
	s = sample{}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			s.value, ok = fc.Double()
		case 2:
			s.timestamp, ok = fc.Int64()
		case 3:
			if starts {
				s.start, ok = fc.Int64()
			}
		}
		if !ok {
			return errWireType
		}
	}
	b.samples = append(b.samples, s)
	return nil
}

func (b *batch) decodeExemplarV1(src []byte) (err error) {
	if err := b.elements.charge(exemplarBytes); err != nil {
		return err
	}
	e := exemplar{labels: mark(b.marks)}
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
				b.marks, err = b.appendLabelV1(b.marks, data)
			}
		case 2:
			e.value, ok = fc.Double()
		case 3:
			e.timestamp, ok = fc.Int64()
		}
		if !ok {
			return errWireType
		}
		if err != nil {
			return err
		}
	}
	e.labels = upTo(e.labels, b.marks)
	b.exemplars = append(b.exemplars, e)
	return nil
}

func (b *batch) decodeMetadataV1(src []byte) (err error) {
	var m metadata
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
			m.family, ok = fc.String()
		case 4:
			m.help, ok = fc.String()
		case 5:
			m.unit, ok = fc.String()
		}
		if !ok {
			return errWireType
		}
	}
	m.kind = kindName(kind)
	b.metadata = append(b.metadata, m)
	return nil
}

const kindUnknown = "unknown"

// kindName names a metric type as Prometheus' text formats do.
func kindName(kind int32) string {
	switch kind {
	case 1:
		return "counter"
	case 2:
		return "gauge"
	case 3:
		return "histogram"
	case 4:
		return "gaugehistogram"
	case 5:
		return "summary"
	case 6:
		return "info"
	case 7:
		return "stateset"
	default:
		return kindUnknown
	}
}

// enum reads an enumeration as generated code does, which cuts to 32 bits.
func enum(fc *easyproto.FieldContext) (int32, bool) {
	v, ok := fc.Uint64()
	return int32(v), ok
}

// sint32 reads a zigzag integer as generated code does, which cuts to 32 bits.
func sint32(fc *easyproto.FieldContext) (int32, bool) {
	v, ok := fc.Uint64()
	u := uint32(v)
	return int32(u>>1) ^ -int32(u&1), ok
}

var errBuckets = fmt.Errorf("histogram: %w", errWireType)

// decodeHistogram decodes a Histogram, which is the same in both versions but for
// the start that version 2 may give it.
func (b *batch) decodeHistogram(src []byte, starts bool) (err error) {
	if err := b.elements.charge(histogramBytes); err != nil {
		return err
	}
	k := &b.buckets
	h := histogram{
		positiveSpans: mark(k.positiveSpans), negativeSpans: mark(k.negativeSpans),
		positiveDeltas: mark(k.positiveDeltas), negativeDeltas: mark(k.negativeDeltas),
		positiveCounts: mark(k.positiveCounts), negativeCounts: mark(k.negativeCounts),
		customValues: mark(k.customValues),
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
			h.count, ok = fc.Uint64()
			h.countKind = intCount
		case 2:
			h.countFloat, ok = fc.Double()
			h.countKind = floatCount
		case 3:
			h.sum, ok = fc.Double()
		case 4:
			h.schema, ok = sint32(&fc)
		case 5:
			h.zeroThreshold, ok = fc.Double()
		case 6:
			h.zeroCount, ok = fc.Uint64()
			h.zeroKind = intCount
		case 7:
			h.zeroFloat, ok = fc.Double()
			h.zeroKind = floatCount
		case 8:
			k.negativeSpans, ok, err = appendSpanV1(k.negativeSpans, &fc)
		case 9:
			k.negativeDeltas, ok = fc.UnpackSint64s(k.negativeDeltas)
		case 10:
			k.negativeCounts, ok = fc.UnpackDoubles(k.negativeCounts)
		case 11:
			k.positiveSpans, ok, err = appendSpanV1(k.positiveSpans, &fc)
		case 12:
			k.positiveDeltas, ok = fc.UnpackSint64s(k.positiveDeltas)
		case 13:
			k.positiveCounts, ok = fc.UnpackDoubles(k.positiveCounts)
		case 14:
			h.resetHint, ok = enum(&fc)
		case 15:
			h.timestamp, ok = fc.Int64()
		case 16:
			k.customValues, ok = fc.UnpackDoubles(k.customValues)
		case 17:
			if starts {
				h.start, ok = fc.Int64()
			}
		}
		if !ok {
			return errBuckets
		}
		if err != nil {
			return err
		}
	}
	h.positiveSpans, h.negativeSpans = upTo(h.positiveSpans, k.positiveSpans), upTo(h.negativeSpans, k.negativeSpans)
	h.positiveDeltas, h.negativeDeltas = upTo(h.positiveDeltas, k.positiveDeltas), upTo(h.negativeDeltas, k.negativeDeltas)
	h.positiveCounts, h.negativeCounts = upTo(h.positiveCounts, k.positiveCounts), upTo(h.negativeCounts, k.negativeCounts)
	h.customValues = upTo(h.customValues, k.customValues)
	b.histograms = append(b.histograms, h)
	return nil
}

// chargeBuckets charges what a field of a histogram adds to its spans or buckets.
func (b *batch) chargeBuckets(fc *easyproto.FieldContext) error {
	switch fc.FieldNum {
	case 8, 11:
		return b.elements.charge(spanBytes)
	case 9, 12:
		data, packed := fc.MessageData()
		if !packed {
			return b.elements.charge(bucketBytes)
		}
		n := 0
		for _, c := range data {
			if c < 0x80 { // the last byte of a number
				n++
			}
		}
		return b.elements.charge(n * bucketBytes)
	case 10, 13, 16:
		data, _ := fc.MessageData()
		return b.elements.charge(max(len(data), bucketBytes))
	default:
		return nil
	}
}

func appendSpanV1(dst []bucketSpan, field *easyproto.FieldContext) (_ []bucketSpan, ok bool, err error) {
	src, ok := field.MessageData()
	if !ok {
		return dst, false, nil
	}
	var s bucketSpan
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return dst, true, err
		}
		switch fc.FieldNum {
		case 1:
			s.offset, ok = sint32(&fc)
		case 2:
			var v uint64
			v, ok = fc.Uint64()
			s.length = uint32(v)
		}
		if !ok {
			return dst, false, nil
		}
	}
	return append(dst, s), true, nil
}
