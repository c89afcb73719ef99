package nightingale

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// The json-kafka-adapter format: what Telefonica's prometheus-kafka-adapter (1.9)
// writes with SERIALIZATION_FORMAT=json, byte for byte, so that its consumers need
// no change. One message per sample, a JSON object of
//
//	labels     object  all labels, __name__ among them
//	name       string  the metric's name
//	timestamp  string  RFC 3339 in UTC, cut to whole seconds
//	value      string  the value in decimal notation without an exponent; "NaN" (a
//	                   stale marker too, which cannot be told apart), "+Inf", "-Inf"
//
// As with the adapter there are no histograms, exemplars, types, units or help, and
// samples of the same second cannot be told apart: prefer json for new consumers.
// What the format has no place for is counted as filtered. The message's key is the
// series' key, 16 hexadecimal digits.
func encodeAdapter(b *batch, out *outgoing) {
	out.room(adapterSize(b))
	for i := range b.series {
		s := &b.series[i]
		from, head := 0, -1
		for _, v := range of(b.samples, s.samples) {
			if !out.begin(s.key, v.timestamp) {
				return
			}
			at := len(out.arena)
			if head < 0 {
				out.arena = appendAdapterHead(out.arena, of(b.labels, s.labels))
				from, head = at, len(out.arena)-at
			} else {
				out.arena = append(out.arena, out.arena[from:from+head]...)
			}
			out.arena = time.Unix(v.timestamp/1000, 0).UTC().AppendFormat(out.arena, time.RFC3339)
			out.arena = append(out.arena, `","value":"`...)
			out.arena = strconv.AppendFloat(out.arena, v.value, 'f', -1, 64)
			out.arena = append(out.arena, `"}`...)
		}
	}
	out.finish()
}

func adapterSize(b *batch) (size int) {
	for i := range b.series {
		s := &b.series[i]
		one := 112
		for _, l := range of(b.labels, s.labels) {
			one += len(l.name) + len(l.value) + 6
			if l.name == nameLabel {
				one += len(l.value)
			}
		}
		size += one * s.samples.len()
	}
	return size
}

func appendAdapterHead(dst []byte, labels []label) []byte {
	dst = append(dst, `{"labels":{`...)
	name := ""
	for i, l := range labels {
		if i > 0 {
			dst = append(dst, ',')
		}
		if l.name == nameLabel {
			name = l.value
		}
		dst = appendHTMLString(dst, l.name)
		dst = append(dst, ':')
		dst = appendHTMLString(dst, l.value)
	}
	dst = append(dst, `},"name":`...)
	dst = appendHTMLString(dst, name)
	return append(dst, `,"timestamp":"`...)
}

// appendHTMLString writes a JSON string as encoding/json does, which also escapes
// what HTML or JavaScript would take for something else.
func appendHTMLString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == '\u2028' || r == '\u2029' {
				dst = append(dst, s[from:i]...)
				dst = append(dst, '\\', 'u', '2', '0', '2', digits[r&0xf])
				from = i + size
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		i++
		from = i
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
