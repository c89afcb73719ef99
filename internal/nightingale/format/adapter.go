package format

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// The json-kafka-adapter format: exactly the bytes that Telefonica's prometheus-kafka-adapter (1.9)
// writes with SERIALIZATION_FORMAT=json, so that its consumers need no change. One message per
// sample, a JSON object of
//
//	labels     object  all labels, __name__ among them
//	name       string  the metric's name
//	timestamp  string  RFC 3339 in UTC, cut to whole seconds
//	value      string  the value in decimal notation without an exponent; "NaN" (a
//	                   stale marker too, which cannot be told apart), "+Inf", "-Inf"
//
// As with the adapter there are no histograms, exemplars, types, units or help, and samples of the
// same second have the same timestamp: prefer json for new consumers. Samples that the format
// cannot contain are counted as filtered. The message's key is the series' key, 16 hexadecimal
// digits.
func encodeAdapter(b *batch.Batch, _ *Packing, out *Messages) {
	out.growArena(adapterSize(b, nil))
	for i := range b.Series {
		s := &b.Series[i]
		from, head := 0, -1
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			if !out.begin(s.Key, v.Timestamp, contents{samples: 1}) {
				return
			}
			at := len(out.arena)
			if head < 0 || at < from+head { // in a new piece the arena no longer contains it
				out.arena = appendAdapterHead(out.arena, batch.Slice(b.Labels, s.Labels))
				from, head = at, len(out.arena)-at
			} else {
				out.arena = append(out.arena, out.arena[from:from+head]...)
			}
			out.arena = time.Unix(v.Timestamp/1000, 0).UTC().AppendFormat(out.arena, time.RFC3339)
			out.arena = append(out.arena, `","value":"`...)
			out.arena = strconv.AppendFloat(out.arena, v.Value, 'f', -1, 64)
			out.arena = append(out.arena, `"}`...)
		}
	}
	out.finish()
}

func adapterSize(b *batch.Batch, _ *Packing) (size int) {
	for i := range b.Series {
		s := &b.Series[i]
		one := 112
		for _, l := range batch.Slice(b.Labels, s.Labels) {
			one += len(l.Name) + len(l.Value) + 6
			if l.Name == batch.NameLabel {
				one += len(l.Value)
			}
		}
		size += one * s.Samples.Len()
	}
	return size
}

func appendAdapterHead(dst []byte, labels []batch.Label) []byte {
	dst = append(dst, `{"labels":{`...)
	name := ""
	for i, l := range labels {
		if i > 0 {
			dst = append(dst, ',')
		}
		if l.Name == batch.NameLabel {
			name = l.Value
		}
		dst = appendHTMLString(dst, l.Name)
		dst = append(dst, ':')
		dst = appendHTMLString(dst, l.Value)
	}
	dst = append(dst, `},"name":`...)
	dst = appendHTMLString(dst, name)
	return append(dst, `,"timestamp":"`...)
}

// appendHTMLString appends a JSON string as encoding/json does, which also escapes characters with
// a special meaning in HTML or JavaScript.
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
		if c == '<' || c == '>' || c == '&' {
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
			continue
		}
		dst = jsontext.AppendEscape(dst, c)
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
