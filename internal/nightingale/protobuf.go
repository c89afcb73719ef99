package nightingale

import (
	"encoding/binary"
	"math"
)

// The protobuf format: one message per series of a request, a prometheus.TimeSeries
// of Prometheus' prompb/types.proto: labels sorted by name, all samples of the
// request in their order, exemplars and native histograms. The stale marker is a
// NaN with its bits as they were sent. The message's key is the series' key, 16
// hexadecimal digits.
//
// The bytes of a series of a remote write 1.0 request are copied, not encoded
// anew, unless labels were sorted or changed.
func encodeProtobuf(b *batch, out *outgoing) {
	out.room(protobufSize(b))
	for i := range b.series {
		s := &b.series[i]
		if !out.begin(s.key, b.latest(s)) {
			return
		}
		if raw := b.rawField(s); len(raw) > 0 {
			out.arena = append(out.arena, raw[s.raw.head:]...)
		} else {
			out.arena = b.appendSeries(out.arena, s)
		}
	}
	out.finish()
}

func protobufSize(b *batch) (size int) {
	for i := range b.series {
		size += 16 + b.encodedSize(&b.series[i])
	}
	return size
}

// rawField is the series' field of the body, tag and length included, or nil.
func (b *batch) rawField(s *series) []byte { return b.body[s.raw.from:s.raw.to:s.raw.to] }

// rawLabels is the field's contents up to the end of the last label.
func (b *batch) rawLabels(s *series) []byte {
	from := int(s.raw.from) + int(s.raw.head)
	return b.body[from : from+int(s.raw.labels)]
}

// encodedSize is the size of the series as a field of a WriteRequest: exact for raw
// series, else no less than it.
func (b *batch) encodedSize(s *series) int {
	if s.raw.to > 0 {
		return int(s.raw.to - s.raw.from)
	}
	size := 12 + 24*s.samples.len()
	if s.refs.len() > 0 {
		size += int(s.labelBytes) + 10*s.refs.len()
	} else {
		size += labelsSize(of(b.labels, s.labels))
	}
	return size + b.partsSize(s)
}

// partsSize is no less than the size of a series' exemplars and histograms.
func (b *batch) partsSize(s *series) (size int) {
	for _, e := range of(b.exemplars, s.exemplars) {
		size += 40 + labelsSize(of(b.marks, e.labels))
	}
	for _, h := range of(b.histograms, s.histograms) {
		size += 128 + 20*(h.positiveSpans.len()+h.negativeSpans.len()) + 10*(h.positiveDeltas.len()+h.negativeDeltas.len()) +
			8*(h.positiveCounts.len()+h.negativeCounts.len()+h.customValues.len())
	}
	return size
}

func labelsSize(labels []label) int {
	size := 0
	for i := range labels {
		size += len(labels[i].name) + len(labels[i].value) + 20
	}
	return size
}

// Wire types of protobuf.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

func appendTag(dst []byte, field, wire int) []byte {
	return binary.AppendUvarint(dst, uint64(field<<3|wire))
}

// openField begins a field whose length is not known yet; closeField sets it.
func openField(dst []byte, field int) ([]byte, int) {
	dst = append(appendTag(dst, field, wireBytes), 0)
	return dst, len(dst)
}

// closeField writes the length of what stands from at on. Where that takes more
// than the byte which was left for it, the contents move.
func closeField(dst []byte, at int) []byte {
	n := len(dst) - at
	if n < 0x80 {
		dst[at-1] = byte(n)
		return dst
	}
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	dst = append(dst, length[:size-1]...) // any bytes: what matters is the room
	copy(dst[at+size-1:], dst[at:at+n])
	copy(dst[at-1:], length[:size])
	return dst
}

func appendText(dst []byte, field int, s string) []byte {
	if s == "" {
		return dst
	}
	dst = binary.AppendUvarint(appendTag(dst, field, wireBytes), uint64(len(s)))
	return append(dst, s...)
}

func appendVarint(dst []byte, field int, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(appendTag(dst, field, wireVarint), v)
}

func appendDouble(dst []byte, field int, v float64) []byte {
	bits := math.Float64bits(v)
	if bits == 0 {
		return dst
	}
	return binary.LittleEndian.AppendUint64(appendTag(dst, field, wireFixed64), bits)
}

func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

// appendSeries writes the contents of a prometheus.TimeSeries.
func (b *batch) appendSeries(dst []byte, s *series) []byte {
	if s.refs.len() > 0 {
		dst = b.appendRefFields(dst, of(b.refs, s.refs))
	} else {
		dst = appendLabelFields(dst, of(b.labels, s.labels))
	}
	var at int
	for _, v := range of(b.samples, s.samples) {
		dst, at = openField(dst, 2)
		dst = appendDouble(dst, 1, v.value)
		dst = appendVarint(dst, 2, uint64(v.timestamp))
		dst = closeField(dst, at)
	}
	for _, e := range of(b.exemplars, s.exemplars) {
		dst, at = openField(dst, 3)
		dst = appendLabelFields(dst, of(b.marks, e.labels))
		dst = appendDouble(dst, 2, e.value)
		dst = appendVarint(dst, 3, uint64(e.timestamp))
		dst = closeField(dst, at)
	}
	for i := range of(b.histograms, s.histograms) {
		dst, at = openField(dst, 4)
		dst = b.appendHistogramFields(dst, &of(b.histograms, s.histograms)[i])
		dst = closeField(dst, at)
	}
	return dst
}

// appendLabelFields writes labels as field 1.
func appendLabelFields(dst []byte, labels []label) []byte {
	for i := range labels {
		dst = appendLabelField(dst, labels[i].name, labels[i].value)
	}
	return dst
}

// appendLabelField writes a Label as field 1.
func appendLabelField(dst []byte, name, value string) []byte {
	if size := len(name) + len(value) + 4; size < 0x80 && name != "" && value != "" {
		// All lengths are of one byte, which most are.
		dst = append(dst, 1<<3|wireBytes, byte(size), 1<<3|wireBytes, byte(len(name)))
		dst = append(append(dst, name...), 2<<3|wireBytes, byte(len(value)))
		return append(dst, value...)
	}
	dst, at := openField(dst, 1)
	dst = appendText(dst, 1, name)
	dst = appendText(dst, 2, value)
	return closeField(dst, at)
}

// appendHistogramFields writes the contents of a prometheus.Histogram.
func (b *batch) appendHistogramFields(dst []byte, h *histogram) []byte {
	k := &b.buckets
	dst = appendCountFields(dst, 1, h.countKind, h.count, h.countFloat)
	dst = appendDouble(dst, 3, h.sum)
	dst = appendVarint(dst, 4, uint64(uint32(zigzag(int64(h.schema)))))
	dst = appendDouble(dst, 5, h.zeroThreshold)
	dst = appendCountFields(dst, 6, h.zeroKind, h.zeroCount, h.zeroFloat)
	dst = appendSpanFields(dst, 8, of(k.negativeSpans, h.negativeSpans))
	dst = appendDeltas(dst, 9, of(k.negativeDeltas, h.negativeDeltas))
	dst = appendDoubles(dst, 10, of(k.negativeCounts, h.negativeCounts))
	dst = appendSpanFields(dst, 11, of(k.positiveSpans, h.positiveSpans))
	dst = appendDeltas(dst, 12, of(k.positiveDeltas, h.positiveDeltas))
	dst = appendDoubles(dst, 13, of(k.positiveCounts, h.positiveCounts))
	dst = appendVarint(dst, 14, uint64(h.resetHint))
	dst = appendVarint(dst, 15, uint64(h.timestamp))
	return appendDoubles(dst, 16, of(k.customValues, h.customValues))
}

// appendCountFields writes a oneof: the integer's field, or the float's, which is
// the next. A member that is set is written even where it is zero.
func appendCountFields(dst []byte, field int, kind countKind, whole uint64, float float64) []byte {
	switch kind {
	case intCount:
		return binary.AppendUvarint(appendTag(dst, field, wireVarint), whole)
	case floatCount:
		return binary.LittleEndian.AppendUint64(appendTag(dst, field+1, wireFixed64), math.Float64bits(float))
	default:
		return dst
	}
}

func appendSpanFields(dst []byte, field int, spans []bucketSpan) []byte {
	var at int
	for _, s := range spans {
		dst, at = openField(dst, field)
		dst = appendVarint(dst, 1, uint64(uint32(zigzag(int64(s.offset)))))
		dst = appendVarint(dst, 2, uint64(s.length))
		dst = closeField(dst, at)
	}
	return dst
}

func appendDeltas(dst []byte, field int, deltas []int64) []byte {
	if len(deltas) == 0 {
		return dst
	}
	dst, at := openField(dst, field)
	for _, d := range deltas {
		dst = binary.AppendUvarint(dst, zigzag(d))
	}
	return closeField(dst, at)
}

func appendDoubles(dst []byte, field int, values []float64) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(appendTag(dst, field, wireBytes), uint64(8*len(values)))
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return dst
}
