package nightingale

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/door"
)

const nameLabel = "__name__"

// validate sorts the labels of each series, computes its key and removes invalid
// series from the batch. scratch is memory to work in.
func (b *batch) validate(l Limits, scratch []byte) (rejected, []byte) {
	var r rejected
	kept := 0
	for i := range b.series {
		s := &b.series[i]
		if reason, text := b.judge(s, l); reason != "" {
			r.add(reason, s, text)
			continue
		}
		if !b.form.lateKeys {
			s.key, scratch = b.key(s, scratch)
		}
		if kept != i {
			b.series[kept] = *s
		}
		kept++
	}
	b.series = b.series[:kept]
	return r, scratch
}

// judge sorts the labels of a series and returns what is wrong with it, no reason
// for nothing.
func (b *batch) judge(s *series, l Limits) (reason string, text func() string) {
	if flaw := b.flawOf(s); flaw != flawless {
		reason, text := flaw.explain()
		return reason, func() string { return display(b.labelsOf(s)) + ": " + text }
	}
	if f := b.checkLabels(s, l); f.reason != "" {
		return f.reason, func() string { return f.explain(b.labelsOf(s)) }
	}
	if reason, text := b.checkParts(s, l); reason != "" {
		return reason, func() string { return display(b.labelsOf(s)) + ": " + text }
	}
	return "", nil
}

// checkLabels sorts the labels of a series, drops those without a value, and looks at
// the others.
func (b *batch) checkLabels(s *series, l Limits) fault {
	if s.refs.len() > 0 {
		return fault{label: -1} // the decoder has looked at them, see usable
	}
	labels := of(b.labels, s.labels)
	known := seen{ascending: ascending(labels)}
	if !known.ascending && len(labels) <= l.LabelsPerSeries {
		slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
		s.raw = span{}
	}
	known.ascii = b.plainLabels(s)
	f := check(labels, l, known)
	if f.reason == emptyValue {
		return check(b.dropEmpty(s), l, known)
	}
	return f
}

// emptyValue is of a label that says nothing: a series has it, or not, and is the
// same.
const emptyValue = "empty_label_value"

// dropEmpty removes the labels without a value, and returns the others.
func (b *batch) dropEmpty(s *series) []label {
	kept := of(b.labels, s.labels)[:0]
	for _, l := range of(b.labels, s.labels) {
		if l.value != "" || l.name == "" { // labels without a name are a fault
			kept = append(kept, l)
		}
	}
	s.labels.to = s.labels.from + int32(len(kept))
	s.raw = span{}
	return kept
}

// ascending reports whether each name is greater than the one before it: then the
// labels are sorted, and no name is given twice.
func ascending(labels []label) bool {
	for i := 1; i < len(labels); i++ {
		one, next := labels[i-1].name, labels[i].name
		if len(one) > 0 && len(next) > 0 && one[0] < next[0] {
			continue // most are told apart by this, without a call
		}
		if one >= next {
			return false
		}
	}
	return true
}

// seen is what a look at labels as a whole has shown.
type seen struct{ ascending, ascii bool }

// fault is what is wrong with a series' labels.
type fault struct {
	reason string
	label  int // its index, -1 for none
	text   string
}

func (f fault) explain(labels []label) string {
	if f.label < 0 {
		return display(labels) + ": " + f.text
	}
	return fmt.Sprintf("%s: label %q: %s", display(labels), door.Cut(labels[f.label].name, 64), f.text)
}

// plainLabels reports whether a look at the series' bytes as one shows that its
// labels are ASCII, which looking at each of the strings takes much longer for.
func (b *batch) plainLabels(s *series) bool {
	return s.raw.to > 0 && isASCII(b.rawLabels(s))
}

func isASCII(data []byte) bool {
	const high = 0x8080808080808080
	for len(data) >= 32 {
		if (binary.LittleEndian.Uint64(data)|binary.LittleEndian.Uint64(data[8:])|
			binary.LittleEndian.Uint64(data[16:])|binary.LittleEndian.Uint64(data[24:]))&high != 0 {
			return false
		}
		data = data[32:]
	}
	var all byte
	for _, c := range data {
		all |= c
	}
	return all < 0x80
}

// check looks at sorted labels one by one, for what is not known of all.
func check(labels []label, l Limits, known seen) fault {
	if len(labels) > l.LabelsPerSeries {
		return fault{"too_many_labels", -1, fmt.Sprintf("%d labels, at most %d are allowed", len(labels), l.LabelsPerSeries)}
	}
	named := false
	for i := range labels {
		name, value := labels[i].name, labels[i].value
		switch {
		case name == "":
			return fault{"empty_label_name", i, "empty name"}
		case value == "" && name == nameLabel:
			return fault{"missing_name", -1, "no metric name (__name__)"}
		case value == "":
			return fault{emptyValue, i, "empty value"}
		case !known.ascending && i > 0 && labels[i-1].name == name:
			return fault{"duplicate_label", i, "given more than once"}
		case len(name) > int(l.LabelNameBytes):
			return fault{"label_too_long", i, "name longer than " + l.LabelNameBytes.String()}
		case len(value) > int(l.LabelValueBytes):
			return fault{"label_too_long", i, "value longer than " + l.LabelValueBytes.String()}
		case !known.ascii && (!utf8.ValidString(name) || !utf8.ValidString(value)):
			return fault{"invalid_utf8", i, "not UTF-8"}
		}
		named = named || name == nameLabel
	}
	if !named {
		return fault{"missing_name", -1, "no metric name (__name__)"}
	}
	return fault{label: -1}
}

// checkParts looks at what a series has besides labels.
func (b *batch) checkParts(s *series, l Limits) (reason, text string) {
	if size := b.encodedSize(s); size > int(l.SeriesBytes) {
		return "series_too_large", fmt.Sprintf("about %d bytes, at most %s are allowed", size, l.SeriesBytes)
	}
	if !b.checkTimestamps(s) {
		return "timestamp_out_of_range", "a timestamp that is not milliseconds of the years 1 to 9999"
	}
	for _, e := range of(b.exemplars, s.exemplars) {
		labels := of(b.marks, e.labels)
		if len(labels) > l.LabelsPerSeries {
			return "too_many_labels", fmt.Sprintf("an exemplar of %d labels, at most %d are allowed", len(labels), l.LabelsPerSeries)
		}
		for _, m := range labels {
			if len(m.name) > int(l.LabelNameBytes) || len(m.value) > int(l.LabelValueBytes) {
				return "label_too_long", "an exemplar's label is too long"
			}
			if !utf8.ValidString(m.name) || !utf8.ValidString(m.value) {
				return "invalid_utf8", "an exemplar's label is not UTF-8"
			}
		}
	}
	for i := range of(b.histograms, s.histograms) {
		if err := b.checkHistogram(&of(b.histograms, s.histograms)[i]); err != nil {
			return "invalid_histogram", err.Error()
		}
	}
	return "", ""
}

// key is the XXH64 of a series' sorted labels in protobuf, as the field labels of a
// prometheus.TimeSeries: of a remote write 1.0 request they stand in the body.
func (b *batch) key(s *series, scratch []byte) (uint64, []byte) {
	if s.raw.plain {
		return xxhash.Sum64(b.rawLabels(s)), scratch
	}
	if s.refs.len() > 0 {
		scratch = b.appendRefFields(scratch[:0], of(b.refs, s.refs))
		return xxhash.Sum64(scratch), scratch
	}
	return key(of(b.labels, s.labels), scratch)
}

// key is the key of a series of these labels. scratch is memory to work in.
func key(labels []label, scratch []byte) (uint64, []byte) {
	scratch = appendLabelFields(scratch[:0], labels)
	return xxhash.Sum64(scratch), scratch
}

// display writes the beginning of a series for people.
func display(labels []label) string {
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
		fmt.Fprintf(&b, "%s=%q", door.Cut(labels[i].name, 64), door.Cut(labels[i].value, 64))
	}
	b.WriteByte('}')
	return b.String()
}
