package format

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// encodeAdapter writes the json-kafka-adapter format: exactly the bytes that Telefonica's
// prometheus-kafka-adapter (1.9) writes with SERIALIZATION_FORMAT=json, so that its consumers need
// no change. A message is one sample: labels (an object with __name__), name, timestamp (RFC 3339 in
// UTC, in whole seconds) and value (a string in decimal notation without an exponent; "NaN" for a
// stale marker, too; "+Inf", "-Inf").
func encodeAdapter(b *batch.Batch, _ *Packing, out *Messages) {
	out.newArena(adapterSize(b, nil))
	for i := range b.Series {
		s, head := &b.Series[i], seriesHead{out: out, encode: appendAdapterHead}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			if !head.begin(b, s, v.Timestamp, contents{samples: 1}) {
				return
			}
			out.arena = time.Unix(v.Timestamp/1000, 0).UTC().AppendFormat(out.arena, time.RFC3339)
			out.arena = append(out.arena, `","value":"`...)
			out.arena = strconv.AppendFloat(out.arena, v.Value, 'f', -1, 64)
			out.arena = append(out.arena, `"}`...)
		}
	}
	out.makeRecords()
}

func adapterSize(b *batch.Batch, _ *Packing) (size int) {
	for i := range b.Series {
		s := &b.Series[i]
		size += (112 + labelsSize(batch.Slice(b.Labels, s.Labels)) + len(b.Name(s))) * s.Samples.Len()
	}
	return size
}

func appendAdapterHead(dst []byte, labels []batch.Label, _ *batch.Metadata) []byte {
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
	special := false
	for i := range len(s) {
		c := s[i]
		special = special || c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || c == 0xe2 // begins U+2028
	}
	if !special {
		return append(append(append(dst, '"'), s...), '"')
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		panic("nightingale: " + err.Error()) // encoding/json encodes any string
	}
	return append(dst, encoded...)
}
