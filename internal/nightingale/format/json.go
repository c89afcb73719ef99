package format

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// EncodeJSON writes the json format: one message per sample, native histogram or exemplar, each a
// JSON object in UTF-8:
//
//	name       string   the metric's name (the label __name__)
//	labels     object   the other labels, sorted by name, string values
//	timestamp  integer  milliseconds since 1970-01-01 UTC
//	start_timestamp
//	           integer  as timestamp, when known: when the counter or histogram began
//	                    to count; it comes with remote write 2.0, not with exemplars
//	type       string   the metric's type, when known: counter, gauge, histogram,
//	                    gaugehistogram, summary, info or stateset
//	unit, help string   when known; they come with the series in remote write 2.0,
//	                    in 1.0 from the senders' metadata requests, which Prometheus
//	                    repeats every minute
//
// and exactly one of
//
//	value      number   the sample's value, in the shortest form that reads back as
//	                    the same float64; or one of the strings "NaN", "+Inf",
//	                    "-Inf", which JSON has no numbers for
//	histogram  object   a native histogram, see AppendHistogram
//	exemplar   object   labels (object) and value (as above); timestamp is the
//	                    exemplar's
//
// and for a sample or histogram that says that its series has ended (Prometheus'
// stale marker, the NaN with the bits 0x7ff0000000000002):
//
//	stale      true     value, or the histogram's sum, is then "NaN"
//
// Fields that do not apply are absent. The message's key is the series' key, 16
// hexadecimal digits.
func EncodeJSON(b *batch.Batch, _ *Packing, out *Messages) {
	out.growArena(jsonSize(b, nil))
	for i := range b.Series {
		s := &b.Series[i]
		// All messages of a series have the same beginning: it is encoded once and then copied.
		head := -1
		from := 0
		begin := func(timestamp int64, c contents) bool {
			if !out.begin(s.Key, timestamp, c) {
				return false
			}
			at := len(out.arena)
			if head < 0 || at < from+head { // in a new piece the arena no longer contains it
				out.arena = appendHead(out.arena, batch.Slice(b.Labels, s.Labels), s.Metadata)
				from, head = at, len(out.arena)-at
			} else {
				out.arena = append(out.arena, out.arena[from:from+head]...)
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
			out.arena = AppendHistogram(out.arena, b, h)
			out.arena = appendEnd(out.arena, batch.IsStale(h.Sum))
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			if !begin(e.Timestamp, contents{exemplars: 1}) {
				return
			}
			out.arena = append(out.arena, `,"exemplar":{"labels":`...)
			out.arena = AppendLabels(out.arena, batch.Slice(b.ExemplarLabels, e.Labels), true)
			out.arena = append(out.arena, `,"value":`...)
			out.arena = appendFloat(out.arena, e.Value)
			out.arena = append(out.arena, '}', '}')
		}
	}
	out.finish()
}

// jsonSize estimates the arena so that it is rarely grown: strings seldom need escapes.
func jsonSize(b *batch.Batch, _ *Packing) int {
	size := 0
	for i := range b.Series {
		s := &b.Series[i]
		one := 96 // key, fixed fields, timestamp, value
		if s.Metadata != nil {
			one += 40 + len(s.Metadata.Unit) + len(s.Metadata.Help)
		}
		for _, l := range batch.Slice(b.Labels, s.Labels) {
			one += len(l.Name) + len(l.Value) + 6
		}
		size += one*s.Entries() + 512*s.Histograms.Len() + 128*s.Exemplars.Len()
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			size += batch.LabelsSize(batch.Slice(b.ExemplarLabels, e.Labels))
		}
	}
	return size
}

// appendHead appends the common beginning of all messages of a series, up to the timestamp.
func appendHead(dst []byte, labels []batch.Label, about *batch.Metadata) []byte {
	dst = append(dst, `{"name":`...)
	for _, l := range labels {
		if l.Name == batch.NameLabel {
			dst = appendString(dst, l.Value)
			break
		}
	}
	dst = append(dst, `,"labels":`...)
	dst = AppendLabels(dst, labels, false)
	if about != nil {
		if about.Type != batch.TypeUnknown {
			dst = append(dst, `,"type":`...)
			dst = appendString(dst, about.Type.String())
		}
		if about.Unit != "" {
			dst = append(dst, `,"unit":`...)
			dst = appendString(dst, about.Unit)
		}
		if about.Help != "" {
			dst = append(dst, `,"help":`...)
			dst = appendString(dst, about.Help)
		}
	}
	return append(dst, `,"timestamp":`...)
}

// AppendLabels appends labels as an object, the metric's name only if withName is set.
func AppendLabels(dst []byte, labels []batch.Label, withName bool) []byte {
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

// AppendHistogram writes a native histogram:
//
//	count, sum       number   or "NaN", "+Inf", "-Inf", as all numbers here
//	schema           integer  -9 to 52, usually -4 to 8, or -53 for custom bounds
//	zero_threshold   number
//	zero_count       number
//	positive_spans,  arrays of [offset, length]: runs of consecutive buckets
//	negative_spans
//	positive_deltas, arrays of integers, with integer counts: each bucket's
//	negative_deltas  difference to the one before
//	positive_counts, arrays of numbers, with float counts: each bucket's count
//	negative_counts
//	custom_values    array of numbers: upper bounds, for schema -53
//	reset_hint       string   yes, no or gauge; absent when unknown
//
// Empty arrays are absent.
func AppendHistogram(dst []byte, b *batch.Batch, h *batch.Histogram) []byte {
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
	dst = appendArray(dst, "positive_spans", batch.Slice(k.PositiveSpans, h.PositiveSpans), appendSpan)
	dst = appendArray(dst, "negative_spans", batch.Slice(k.NegativeSpans, h.NegativeSpans), appendSpan)
	dst = appendArray(dst, "positive_deltas", batch.Slice(k.PositiveDeltas, h.PositiveDeltas), appendInt)
	dst = appendArray(dst, "negative_deltas", batch.Slice(k.NegativeDeltas, h.NegativeDeltas), appendInt)
	dst = appendArray(dst, "positive_counts", batch.Slice(k.PositiveCounts, h.PositiveCounts), appendFloat)
	dst = appendArray(dst, "negative_counts", batch.Slice(k.NegativeCounts, h.NegativeCounts), appendFloat)
	dst = appendArray(dst, "custom_values", batch.Slice(k.CustomValues, h.CustomValues), appendFloat)
	switch h.ResetHint {
	case 1:
		dst = append(dst, `,"reset_hint":"yes"`...)
	case 2:
		dst = append(dst, `,"reset_hint":"no"`...)
	case 3:
		dst = append(dst, `,"reset_hint":"gauge"`...)
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
