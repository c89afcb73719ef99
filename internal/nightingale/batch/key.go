package batch

import (
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// NameLabel is the label that holds the metric's name.
const NameLabel = "__name__"

// SeriesKey returns the XXH64 hash of a series' sorted labels in protobuf, as the field labels of a
// prometheus.TimeSeries. The body of a remote write 1.0 request contains them in this form.
func (b *Batch) SeriesKey(s *Series, scratch []byte) (uint64, []byte) {
	if s.Raw.PlainLabels {
		return xxhash.Sum64(b.RawLabels(s)), scratch
	}
	if s.Refs.Len() > 0 {
		scratch = b.appendRefFields(scratch[:0], Slice(b.Refs, s.Refs))
		return xxhash.Sum64(scratch), scratch
	}
	return KeyOf(Slice(b.Labels, s.Labels), scratch)
}

// KeyOf returns the key of a series with these labels. scratch is reusable working memory.
func KeyOf(labels []Label, scratch []byte) (uint64, []byte) {
	scratch = appendLabelFields(scratch[:0], labels)
	return xxhash.Sum64(scratch), scratch
}

// Display returns the first labels of a series as text for error messages.
func Display(labels []Label) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range labels {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > 160 {
			b.WriteString("...")
			break
		}
		fmt.Fprintf(&b, "%s=%q", truncate.Text(labels[i].Name, 64), truncate.Text(labels[i].Value, 64))
	}
	b.WriteByte('}')
	return b.String()
}

// AppendKey appends a series' key as 16 hexadecimal digits.
func AppendKey(dst []byte, key uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[key>>shift&0xf])
	}
	return dst
}

// Name returns the metric's name of a series, empty if it has none.
func (b *Batch) Name(s *Series) string {
	if s.Labels.Len() == 0 {
		refs := Slice(b.Refs, s.Refs)
		for i := 0; i < len(refs); i += 2 {
			if b.Symbols[refs[i]] == NameLabel {
				return b.Symbols[refs[i+1]]
			}
		}
	}
	for _, l := range Slice(b.Labels, s.Labels) {
		if l.Name == NameLabel {
			return l.Value
		}
	}
	return ""
}
