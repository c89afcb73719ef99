package format

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// EncodeJSON writes the json format: one message per sample, native histogram or exemplar.
// docs/nightingale.md describes its fields.
func EncodeJSON(b *batch.Batch, _ *Packing, out *Messages) {
	out.newArena(jsonSize(b, nil))
	for i := range b.Series {
		s, head := &b.Series[i], seriesHead{out: out, encode: appendHead}
		begin := func(timestamp int64, c contents) bool {
			if !head.begin(b, s, timestamp, c) {
				return false
			}
			out.arena = strconv.AppendInt(out.arena, timestamp, 10)
			return true
		}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			if !begin(v.Timestamp, contents{samples: 1}) {
				return
			}
			out.arena = appendStart(out.arena, v.Start)
			out.arena = append(out.arena, `,"value":`...)
			out.arena = appendFloat(out.arena, v.Value)
			out.arena = appendEnd(out.arena, batch.IsStale(v.Value))
		}
		for j := range batch.Slice(b.Histograms, s.Histograms) {
			h := &batch.Slice(b.Histograms, s.Histograms)[j]
			if !begin(h.Timestamp, contents{histograms: 1}) {
				return
			}
			out.arena = appendStart(out.arena, h.Start)
			out.arena = append(out.arena, `,"histogram":`...)
			out.arena = appendHistogram(out.arena, b, h)
			out.arena = appendEnd(out.arena, batch.IsStale(h.Sum))
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			if !begin(e.Timestamp, contents{exemplars: 1}) {
				return
			}
			out.arena = append(out.arena, `,"exemplar":{"labels":`...)
			out.arena = appendLabels(out.arena, batch.Slice(b.ExemplarLabels, e.Labels), true)
			out.arena = append(out.arena, `,"value":`...)
			out.arena = appendFloat(out.arena, e.Value)
			out.arena = append(out.arena, '}', '}')
		}
	}
	out.makeRecords()
}

// jsonSize estimates the size of the messages so that the arena rarely grows: strings seldom need
// escapes.
func jsonSize(b *batch.Batch, _ *Packing) (size int) {
	for i := range b.Series {
		s := &b.Series[i]
		one := 96 + labelsSize(batch.Slice(b.Labels, s.Labels)) // key, fixed fields, timestamp, value
		if s.Metadata != nil {
			one += 40 + len(s.Metadata.Unit) + len(s.Metadata.Help)
		}
		size += one*s.Entries() + 512*s.Histograms.Len() + 128*s.Exemplars.Len()
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			size += labelsSize(batch.Slice(b.ExemplarLabels, e.Labels))
		}
	}
	return size
}

// labelsSize returns the size of labels in JSON without escapes.
func labelsSize(labels []batch.Label) (size int) {
	for i := range labels {
		size += len(labels[i].Name) + len(labels[i].Value) + 6
	}
	return size
}

// appendHead appends the common beginning of all messages of a series, up to the timestamp.
func appendHead(dst []byte, labels []batch.Label, metadata *batch.Metadata) []byte {
	dst = append(dst, `{"name":`...)
	for _, l := range labels {
		if l.Name == batch.NameLabel {
			dst = appendString(dst, l.Value)
			break
		}
	}
	dst = append(dst, `,"labels":`...)
	dst = appendLabels(dst, labels, false)
	if m := metadata; m != nil {
		if m.Type != batch.TypeUnknown {
			dst = appendText(dst, `,"type":`, m.Type.String())
		}
		dst = appendText(dst, `,"unit":`, m.Unit)
		dst = appendText(dst, `,"help":`, m.Help)
	}
	return append(dst, `,"timestamp":`...)
}

// appendText appends a field unless its text is empty.
func appendText(dst []byte, name, text string) []byte {
	if text == "" {
		return dst
	}
	return appendString(append(dst, name...), text)
}

// appendLabels appends labels as an object, the metric's name only if withName is set.
func appendLabels(dst []byte, labels []batch.Label, withName bool) []byte {
	dst = append(dst, '{')
	first := true
	for _, l := range labels {
		if l.Name == batch.NameLabel && !withName {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendString(dst, l.Name)
		dst = append(dst, ':')
		dst = appendString(dst, l.Value)
	}
	return append(dst, '}')
}

func appendStart(dst []byte, start int64) []byte {
	if start == 0 {
		return dst
	}
	return strconv.AppendInt(append(dst, `,"start_timestamp":`...), start, 10)
}

func appendEnd(dst []byte, stale bool) []byte {
	if stale {
		dst = append(dst, `,"stale":true`...)
	}
	return append(dst, '}')
}

// appendHistogram appends a native histogram as an object. Empty arrays are absent.
func appendHistogram(dst []byte, b *batch.Batch, h *batch.Histogram) []byte {
	k := &b.Buckets
	dst = append(dst, `{"count":`...)
	dst = appendCount(dst, h.CountKind, h.Count, h.CountFloat)
	dst = append(dst, `,"sum":`...)
	dst = appendFloat(dst, h.Sum)
	dst = append(dst, `,"schema":`...)
	dst = strconv.AppendInt(dst, int64(h.Schema), 10)
	dst = append(dst, `,"zero_threshold":`...)
	dst = appendFloat(dst, h.ZeroThreshold)
	dst = append(dst, `,"zero_count":`...)
	dst = appendCount(dst, h.ZeroKind, h.ZeroCount, h.ZeroFloat)
	dst = appendArray(dst, "positive_spans", batch.Slice(k.Spans[batch.Positive], h.Spans[batch.Positive]), appendSpan)
	dst = appendArray(dst, "negative_spans", batch.Slice(k.Spans[batch.Negative], h.Spans[batch.Negative]), appendSpan)
	dst = appendArray(dst, "positive_deltas", batch.Slice(k.Deltas[batch.Positive], h.Deltas[batch.Positive]), appendInt)
	dst = appendArray(dst, "negative_deltas", batch.Slice(k.Deltas[batch.Negative], h.Deltas[batch.Negative]), appendInt)
	dst = appendArray(dst, "positive_counts", batch.Slice(k.Counts[batch.Positive], h.Counts[batch.Positive]), appendFloat)
	dst = appendArray(dst, "negative_counts", batch.Slice(k.Counts[batch.Negative], h.Counts[batch.Negative]), appendFloat)
	dst = appendArray(dst, "custom_values", batch.Slice(k.CustomValues, h.CustomValues), appendFloat)
	if hints := [...]string{1: "yes", 2: "no", 3: "gauge"}; h.ResetHint > 0 && int(h.ResetHint) < len(hints) {
		dst = appendText(dst, `,"reset_hint":`, hints[h.ResetHint])
	}
	return append(dst, '}')
}

func appendCount(dst []byte, kind batch.CountKind, whole uint64, float float64) []byte {
	if kind == batch.FloatCount {
		return appendFloat(dst, float)
	}
	return strconv.AppendUint(dst, whole, 10)
}

func appendInt(dst []byte, v int64) []byte { return strconv.AppendInt(dst, v, 10) }

func appendSpan(dst []byte, s batch.BucketSpan) []byte {
	dst = append(dst, '[')
	dst = strconv.AppendInt(dst, int64(s.Offset), 10)
	dst = append(dst, ',')
	dst = strconv.AppendUint(dst, uint64(s.Length), 10)
	return append(dst, ']')
}

func appendArray[T any](dst []byte, name string, values []T, appendOne func([]byte, T) []byte) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':', '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendOne(dst, v)
	}
	return append(dst, ']')
}

// appendFloat appends v as a JSON number, or as a string if JSON has no number for it.
func appendFloat(dst []byte, v float64) []byte {
	if whole := int64(v); float64(whole) == v && whole > -1<<53 && whole < 1<<53 && (whole != 0 || !math.Signbit(v)) {
		return strconv.AppendInt(dst, whole, 10)
	}
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(dst, `"+Inf"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Inf"`...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}

// appendString appends s, which must be valid UTF-8, as a JSON string.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if !plainString(s) {
		return append(appendEscaped(dst, s), '"')
	}
	dst = append(dst, s...)
	return append(dst, '"')
}

// plainString reports whether s certainly needs no escapes. It checks eight bytes at a time if s is
// long enough: nearly all of a message is such strings.
func plainString(s string) bool {
	const (
		ones = 0x0101010101010101
		tops = 0x8080808080808080
	)
	if len(s) < 8 {
		for i := range len(s) {
			if c := s[i]; c < ' ' || c == '"' || c == '\\' {
				return false
			}
		}
		return true
	}
	data := unsafe.Slice(unsafe.StringData(s), len(s)) //nolint:gosec // read only
	for at := 0; ; at += 8 {
		at = min(at, len(data)-8) // some of the last eight bytes may be checked twice
		w := binary.LittleEndian.Uint64(data[at:])
		quote, backslash := w^('"'*ones), w^('\\'*ones)
		// The usual test for a zero byte, and for a byte below a space. It may report a wrong byte
		// after a right one, but never misses one.
		if ((quote-ones)&^quote|(backslash-ones)&^backslash|(w-' '*ones)&^w)&tops != 0 {
			return false
		}
		if at == len(data)-8 {
			return true
		}
	}
}

func appendEscaped(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		dst = jsontext.AppendEscape(dst, c)
	}
	return append(dst, s[from:]...)
}
