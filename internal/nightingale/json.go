package nightingale

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"
)

// The json format: one message per sample, native histogram or exemplar, each a
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
//	histogram  object   a native histogram, see appendHistogram
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
func encodeJSON(b *batch, out *outgoing) {
	out.room(jsonSize(b))
	for i := range b.series {
		s := &b.series[i]
		// Messages of a series begin alike: the first is written, the others copy.
		head := -1
		from := 0
		begin := func(timestamp int64) bool {
			if !out.begin(s.key, timestamp) {
				return false
			}
			at := len(out.arena)
			if head < 0 {
				out.arena = appendHead(out.arena, of(b.labels, s.labels), s.about)
				from, head = at, len(out.arena)-at
			} else {
				out.arena = append(out.arena, out.arena[from:from+head]...)
			}
			out.arena = strconv.AppendInt(out.arena, timestamp, 10)
			return true
		}
		for _, v := range of(b.samples, s.samples) {
			if !begin(v.timestamp) {
				return
			}
			out.arena = appendStart(out.arena, v.start)
			out.arena = append(out.arena, `,"value":`...)
			out.arena = appendFloat(out.arena, v.value)
			out.arena = appendEnd(out.arena, isStale(v.value))
		}
		for j := range of(b.histograms, s.histograms) {
			h := &of(b.histograms, s.histograms)[j]
			if !begin(h.timestamp) {
				return
			}
			out.arena = appendStart(out.arena, h.start)
			out.arena = append(out.arena, `,"histogram":`...)
			out.arena = appendHistogram(out.arena, b, h)
			out.arena = appendEnd(out.arena, isStale(h.sum))
		}
		for _, e := range of(b.exemplars, s.exemplars) {
			if !begin(e.timestamp) {
				return
			}
			out.arena = append(out.arena, `,"exemplar":{"labels":`...)
			out.arena = appendLabels(out.arena, of(b.marks, e.labels))
			out.arena = append(out.arena, `,"value":`...)
			out.arena = appendFloat(out.arena, e.value)
			out.arena = append(out.arena, '}', '}')
		}
	}
	out.finish()
}

// jsonSize estimates the arena so that it is rarely grown: strings seldom need escapes.
func jsonSize(b *batch) int {
	size := 0
	for i := range b.series {
		s := &b.series[i]
		one := 96 // key, fixed fields, timestamp, value
		if s.about != nil {
			one += 40 + len(s.about.unit) + len(s.about.help)
		}
		for _, l := range of(b.labels, s.labels) {
			one += len(l.name) + len(l.value) + 6
		}
		size += one*s.entries() + 512*s.histograms.len() + 128*s.exemplars.len()
		for _, e := range of(b.exemplars, s.exemplars) {
			size += labelsSize(of(b.marks, e.labels))
		}
	}
	return size
}

// appendHead writes what all messages of a series begin with, up to the timestamp.
func appendHead(dst []byte, labels []label, about *metadata) []byte {
	dst = append(dst, `{"name":`...)
	for _, l := range labels {
		if l.name == nameLabel {
			dst = appendString(dst, l.value)
			break
		}
	}
	dst = append(dst, `,"labels":`...)
	dst = appendLabels(dst, labels)
	if about != nil {
		if about.kind != kindUnknown {
			dst = append(dst, `,"type":`...)
			dst = appendString(dst, about.kind)
		}
		if about.unit != "" {
			dst = append(dst, `,"unit":`...)
			dst = appendString(dst, about.unit)
		}
		if about.help != "" {
			dst = append(dst, `,"help":`...)
			dst = appendString(dst, about.help)
		}
	}
	return append(dst, `,"timestamp":`...)
}

// appendLabels writes labels as an object, without the metric's name.
func appendLabels(dst []byte, labels []label) []byte {
	dst = append(dst, '{')
	first := true
	for _, l := range labels {
		if l.name == nameLabel {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = appendString(dst, l.name)
		dst = append(dst, ':')
		dst = appendString(dst, l.value)
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

// isStale tells Prometheus' stale marker from other NaNs by its bits.
func isStale(v float64) bool { return math.Float64bits(v) == 0x7ff0000000000002 }

// appendHistogram writes a native histogram:
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
func appendHistogram(dst []byte, b *batch, h *histogram) []byte {
	k := &b.buckets
	dst = append(dst, `{"count":`...)
	dst = appendCount(dst, h.countKind, h.count, h.countFloat)
	dst = append(dst, `,"sum":`...)
	dst = appendFloat(dst, h.sum)
	dst = append(dst, `,"schema":`...)
	dst = strconv.AppendInt(dst, int64(h.schema), 10)
	dst = append(dst, `,"zero_threshold":`...)
	dst = appendFloat(dst, h.zeroThreshold)
	dst = append(dst, `,"zero_count":`...)
	dst = appendCount(dst, h.zeroKind, h.zeroCount, h.zeroFloat)
	dst = appendArray(dst, "positive_spans", of(k.positiveSpans, h.positiveSpans), appendSpan)
	dst = appendArray(dst, "negative_spans", of(k.negativeSpans, h.negativeSpans), appendSpan)
	dst = appendArray(dst, "positive_deltas", of(k.positiveDeltas, h.positiveDeltas), appendInt)
	dst = appendArray(dst, "negative_deltas", of(k.negativeDeltas, h.negativeDeltas), appendInt)
	dst = appendArray(dst, "positive_counts", of(k.positiveCounts, h.positiveCounts), appendFloat)
	dst = appendArray(dst, "negative_counts", of(k.negativeCounts, h.negativeCounts), appendFloat)
	dst = appendArray(dst, "custom_values", of(k.customValues, h.customValues), appendFloat)
	switch h.resetHint {
	case 1:
		dst = append(dst, `,"reset_hint":"yes"`...)
	case 2:
		dst = append(dst, `,"reset_hint":"no"`...)
	case 3:
		dst = append(dst, `,"reset_hint":"gauge"`...)
	}
	return append(dst, '}')
}

func appendCount(dst []byte, kind countKind, whole uint64, float float64) []byte {
	if kind == floatCount {
		return appendFloat(dst, float)
	}
	return strconv.AppendUint(dst, whole, 10)
}

func appendInt(dst []byte, v int64) []byte { return strconv.AppendInt(dst, v, 10) }

func appendSpan(dst []byte, s bucketSpan) []byte {
	dst = append(dst, '[')
	dst = strconv.AppendInt(dst, int64(s.offset), 10)
	dst = append(dst, ',')
	dst = strconv.AppendUint(dst, uint64(s.length), 10)
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

// appendFloat writes v as a JSON number, or as a string where JSON has none.
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

// appendString writes s, which is valid UTF-8, as a JSON string.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if !plainString(s) {
		return append(appendEscaped(dst, s), '"')
	}
	dst = append(dst, s...)
	return append(dst, '"')
}

// plainString reports whether s is known to need no escape, by eight bytes at a
// time where it is that long: nearly all of a message is such strings.
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
		at = min(at, len(data)-8) // the last eight may be looked at twice
		w := binary.LittleEndian.Uint64(data[at:])
		quote, backslash := w^('"'*ones), w^('\\'*ones)
		// The usual test for a zero byte, and for one below a space. It may take a
		// byte for another that follows one it has found, never miss one.
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
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			const digits = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		}
	}
	return append(dst, s[from:]...)
}
