package batch

import (
	"encoding/binary"
	"math"
)

// RawLabels returns the bytes of a series in the body up to the end of its last label.
func (b *Batch) RawLabels(s *Series) []byte { return b.Body[s.Raw.From : s.Raw.From+s.Raw.Labels] }

// ReceivedSize returns the size of the series in the body, or EncodedSize if the body does not
// contain it.
func (b *Batch) ReceivedSize(s *Series) int {
	if s.Raw.To > 0 {
		return int(s.Raw.To - s.Raw.From)
	}
	return b.EncodedSize(s)
}

// EncodedSize returns an upper bound of the size of the series as a field of a WriteRequest.
func (b *Batch) EncodedSize(s *Series) int {
	size := 12 + 24*s.Samples.Len()
	if s.Refs.Len() > 0 {
		size += int(s.LabelBytes) + 10*s.Refs.Len()
	} else {
		size += LabelsSize(Slice(b.Labels, s.Labels))
	}
	return size + b.PartsSize(s)
}

// PartsSize returns an upper bound of the size of a series' exemplars and histograms.
func (b *Batch) PartsSize(s *Series) (size int) {
	for _, e := range Slice(b.Exemplars, s.Exemplars) {
		size += 40 + LabelsSize(Slice(b.ExemplarLabels, e.Labels))
	}
	for _, h := range Slice(b.Histograms, s.Histograms) {
		size += 128 + 20*(h.PositiveSpans.Len()+h.NegativeSpans.Len()) + 10*(h.PositiveDeltas.Len()+h.NegativeDeltas.Len()) +
			8*(h.PositiveCounts.Len()+h.NegativeCounts.Len()+h.CustomValues.Len())
	}
	return size
}

// LabelsSize returns an upper bound of the size of labels as fields.
func LabelsSize(labels []Label) int {
	size := 0
	for i := range labels {
		size += len(labels[i].Name) + len(labels[i].Value) + 20
	}
	return size
}

// Wire types of protobuf.
const (
	WireVarint  = 0
	WireFixed64 = 1
	WireBytes   = 2
)

func appendTag(dst []byte, field, wire int) []byte {
	return binary.AppendUvarint(dst, uint64(field<<3|wire))
}

// OpenField begins a field of unknown length. CloseField sets the length.
func OpenField(dst []byte, field int) ([]byte, int) {
	dst = append(appendTag(dst, field, WireBytes), 0)
	return dst, len(dst)
}

// CloseField writes the length of the field's contents, which begin at at. OpenField has left one
// byte for it. If the length takes more bytes, CloseField moves the contents.
func CloseField(dst []byte, at int) []byte {
	n := len(dst) - at
	if n < 0x80 {
		dst[at-1] = byte(n)
		return dst
	}
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	dst = append(dst, length[:size-1]...) // the values do not matter, only the space
	copy(dst[at+size-1:], dst[at:at+n])
	copy(dst[at-1:], length[:size])
	return dst
}

// AppendText appends a string, unless it is empty.
func AppendText(dst []byte, field int, s string) []byte {
	if s == "" {
		return dst
	}
	dst = binary.AppendUvarint(appendTag(dst, field, WireBytes), uint64(len(s)))
	return append(dst, s...)
}

// AppendVarint appends a number, unless it is zero.
func AppendVarint(dst []byte, field int, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(appendTag(dst, field, WireVarint), v)
}

// AppendDouble appends a double, unless its bits are zero.
func AppendDouble(dst []byte, field int, v float64) []byte {
	bits := math.Float64bits(v)
	if bits == 0 {
		return dst
	}
	return binary.LittleEndian.AppendUint64(appendTag(dst, field, WireFixed64), bits)
}

func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

// AppendSeries writes the contents of a prometheus.TimeSeries.
func (b *Batch) AppendSeries(dst []byte, s *Series) []byte {
	if s.Refs.Len() > 0 {
		dst = b.appendRefFields(dst, Slice(b.Refs, s.Refs))
	} else {
		dst = appendLabelFields(dst, Slice(b.Labels, s.Labels))
	}
	var at int
	for _, v := range Slice(b.Samples, s.Samples) {
		dst, at = OpenField(dst, 2)
		dst = AppendDouble(dst, 1, v.Value)
		dst = AppendVarint(dst, 2, uint64(v.Timestamp))
		dst = CloseField(dst, at)
	}
	for _, e := range Slice(b.Exemplars, s.Exemplars) {
		dst, at = OpenField(dst, 3)
		dst = appendLabelFields(dst, Slice(b.ExemplarLabels, e.Labels))
		dst = AppendDouble(dst, 2, e.Value)
		dst = AppendVarint(dst, 3, uint64(e.Timestamp))
		dst = CloseField(dst, at)
	}
	for i := range Slice(b.Histograms, s.Histograms) {
		dst, at = OpenField(dst, 4)
		dst = b.AppendHistogramFields(dst, &Slice(b.Histograms, s.Histograms)[i])
		dst = CloseField(dst, at)
	}
	return dst
}

// appendLabelFields writes labels as field 1.
func appendLabelFields(dst []byte, labels []Label) []byte {
	for i := range labels {
		dst = appendLabelField(dst, labels[i].Name, labels[i].Value)
	}
	return dst
}

// appendLabelField writes a Label as field 1.
func appendLabelField(dst []byte, name, value string) []byte {
	if size := len(name) + len(value) + 4; size < 0x80 && name != "" && value != "" {
		// The usual case: all lengths take one byte.
		dst = append(dst, 1<<3|WireBytes, byte(size), 1<<3|WireBytes, byte(len(name)))
		dst = append(append(dst, name...), 2<<3|WireBytes, byte(len(value)))
		return append(dst, value...)
	}
	dst, at := OpenField(dst, 1)
	dst = AppendText(dst, 1, name)
	dst = AppendText(dst, 2, value)
	return CloseField(dst, at)
}

// AppendHistogramFields writes the contents of a prometheus.Histogram.
func (b *Batch) AppendHistogramFields(dst []byte, h *Histogram) []byte {
	k := &b.Buckets
	dst = appendCountFields(dst, 1, h.CountKind, h.Count, h.CountFloat)
	dst = AppendDouble(dst, 3, h.Sum)
	dst = AppendVarint(dst, 4, uint64(uint32(zigzag(int64(h.Schema)))))
	dst = AppendDouble(dst, 5, h.ZeroThreshold)
	dst = appendCountFields(dst, 6, h.ZeroKind, h.ZeroCount, h.ZeroFloat)
	dst = appendSpanFields(dst, 8, Slice(k.NegativeSpans, h.NegativeSpans))
	dst = appendDeltas(dst, 9, Slice(k.NegativeDeltas, h.NegativeDeltas))
	dst = appendDoubles(dst, 10, Slice(k.NegativeCounts, h.NegativeCounts))
	dst = appendSpanFields(dst, 11, Slice(k.PositiveSpans, h.PositiveSpans))
	dst = appendDeltas(dst, 12, Slice(k.PositiveDeltas, h.PositiveDeltas))
	dst = appendDoubles(dst, 13, Slice(k.PositiveCounts, h.PositiveCounts))
	dst = AppendVarint(dst, 14, uint64(h.ResetHint))
	dst = AppendVarint(dst, 15, uint64(h.Timestamp))
	return appendDoubles(dst, 16, Slice(k.CustomValues, h.CustomValues))
}

// appendCountFields appends a oneof: the field of the integer, or the next field for the float. It
// also appends a zero, because the member is set.
func appendCountFields(dst []byte, field int, kind CountKind, whole uint64, float float64) []byte {
	switch kind {
	case IntCount:
		return binary.AppendUvarint(appendTag(dst, field, WireVarint), whole)
	case FloatCount:
		return binary.LittleEndian.AppendUint64(appendTag(dst, field+1, WireFixed64), math.Float64bits(float))
	default:
		return dst
	}
}

func appendSpanFields(dst []byte, field int, spans []BucketSpan) []byte {
	var at int
	for _, s := range spans {
		dst, at = OpenField(dst, field)
		dst = AppendVarint(dst, 1, uint64(uint32(zigzag(int64(s.Offset)))))
		dst = AppendVarint(dst, 2, uint64(s.Length))
		dst = CloseField(dst, at)
	}
	return dst
}

func appendDeltas(dst []byte, field int, deltas []int64) []byte {
	if len(deltas) == 0 {
		return dst
	}
	dst, at := OpenField(dst, field)
	for _, d := range deltas {
		dst = binary.AppendUvarint(dst, zigzag(d))
	}
	return CloseField(dst, at)
}

func appendDoubles(dst []byte, field int, values []float64) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(appendTag(dst, field, WireBytes), uint64(8*len(values)))
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	}
	return dst
}

// EncodedSize returns an upper bound of the size of the entry as a field.
func (m *Metadata) EncodedSize() int { return 40 + len(m.Family) + len(m.Help) + len(m.Unit) }
