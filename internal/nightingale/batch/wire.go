package batch

import (
	"encoding/binary"
	"math"
	"slices"
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
		size += 128 + 8*h.CustomValues.Len()
		for side := range h.Spans {
			size += 20*h.Spans[side].Len() + 10*h.Deltas[side].Len() + 8*h.Counts[side].Len()
		}
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

// AppendSeries appends the contents of a prometheus.TimeSeries. The labels of s must be texts.
func (b *Batch) AppendSeries(dst []byte, s *Series) []byte {
	dst = appendLabelFields(dst, Slice(b.Labels, s.Labels))
	for _, v := range Slice(b.Samples, s.Samples) {
		dst = AppendSample(dst, &v, 0)
	}
	for _, e := range Slice(b.Exemplars, s.Exemplars) {
		var at int
		dst, at = OpenField(dst, 3)
		dst = appendLabelFields(dst, Slice(b.ExemplarLabels, e.Labels))
		dst = AppendDouble(dst, 2, e.Value)
		dst = AppendVarint(dst, 3, uint64(e.Timestamp))
		dst = CloseField(dst, at)
	}
	for i := range Slice(b.Histograms, s.Histograms) {
		dst = b.AppendHistogram(dst, 4, &Slice(b.Histograms, s.Histograms)[i], 0)
	}
	return dst
}

// AppendSample appends a sample as field 2 of a series. A start of 0 is absent, as in version 1.
func AppendSample(dst []byte, v *Sample, start int64) []byte {
	const maxSize = 2 + 9 + 2*(1+binary.MaxVarintLen64)
	from := len(dst)
	buf := slices.Grow(dst, maxSize)[:from+maxSize]
	at := from + 2
	if bits := math.Float64bits(v.Value); bits != 0 {
		buf[at] = 1<<3 | WireFixed64
		binary.LittleEndian.PutUint64(buf[at+1:], bits)
		at += 9
	}
	if v.Timestamp != 0 {
		buf[at] = 2<<3 | WireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(v.Timestamp))
	}
	if start != 0 {
		buf[at] = 3<<3 | WireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(start))
	}
	buf[from], buf[from+1] = 2<<3|WireBytes, byte(at-from-2)
	return buf[:at]
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

// AppendHistogram appends a histogram as a field. A start of 0 is absent, as in version 1.
func (b *Batch) AppendHistogram(dst []byte, field int, h *Histogram, start int64) []byte {
	k := &b.Buckets
	dst, at := OpenField(dst, field)
	dst = appendCountFields(dst, 1, h.CountKind, h.Count, h.CountFloat)
	dst = AppendDouble(dst, 3, h.Sum)
	dst = AppendVarint(dst, 4, uint64(uint32(zigzag(int64(h.Schema)))))
	dst = AppendDouble(dst, 5, h.ZeroThreshold)
	dst = appendCountFields(dst, 6, h.ZeroKind, h.ZeroCount, h.ZeroFloat)
	for _, side := range []struct{ index, field int }{{Negative, 8}, {Positive, 11}} {
		dst = appendSpans(dst, side.field, Slice(k.Spans[side.index], h.Spans[side.index]))
		dst = appendDeltas(dst, side.field+1, Slice(k.Deltas[side.index], h.Deltas[side.index]))
		dst = appendDoubles(dst, side.field+2, Slice(k.Counts[side.index], h.Counts[side.index]))
	}
	dst = AppendVarint(dst, 14, uint64(h.ResetHint))
	dst = AppendVarint(dst, 15, uint64(h.Timestamp))
	dst = appendDoubles(dst, 16, Slice(k.CustomValues, h.CustomValues))
	dst = AppendVarint(dst, 17, uint64(start))
	return CloseField(dst, at)
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

func appendSpans(dst []byte, field int, spans []BucketSpan) []byte {
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
