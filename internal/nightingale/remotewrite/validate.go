package remotewrite

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// validator checks the series of a batch.
type validator struct{ *batch.Batch }

// Validate sorts the labels of each series, computes its key, and removes invalid series and
// metadata from the batch. Any reader can decode messages of the others. scratch is reusable working
// memory.
func Validate(in *batch.Batch, l Limits, scratch []byte) (batch.Rejected, []byte) {
	b := validator{in}
	var r batch.Rejected
	kept := 0
	for i := range b.Series {
		s := &b.Series[i]
		if f := b.check(s, l); f != nil {
			r.Add(f.reason, s, func() string { return f.explain(b.LabelsOf(s)) })
			continue
		}
		if s.Metadata != nil && s.Metadata.Invalid {
			r.AddMetadata(b.Name(s), "is not UTF-8")
			s.Metadata = nil
		}
		if !b.References {
			s.Key, scratch = b.SeriesKey(s, scratch)
		}
		if kept != i {
			b.Series[kept] = *s
		}
		kept++
	}
	b.Series = b.Series[:kept]
	b.checkMetadata(l, &r)
	return r, scratch
}

// checkMetadata removes invalid metadata entries of a 1.0 request.
func (b validator) checkMetadata(l Limits, r *batch.Rejected) {
	kept := b.Metadata[:0]
	for i := range b.Metadata {
		switch m := &b.Metadata[i]; {
		case !utf8.ValidString(m.Family) || !utf8.ValidString(m.Help) || !utf8.ValidString(m.Unit):
			r.AddMetadata(m.Family, "is not UTF-8")
		case 40+len(m.Family)+len(m.Help)+len(m.Unit) > int(l.SeriesBytes):
			r.AddMetadata(m.Family, fmt.Sprintf("takes more than %s", l.SeriesBytes))
		default:
			kept = append(kept, *m)
		}
	}
	b.Metadata = kept
}

// check sorts the labels of a series and checks all of it. It returns nil if the series is valid.
func (b validator) check(s *batch.Series, l Limits) *fault {
	if s.Err != batch.NoError {
		reason, text := s.Err.Explain()
		return &fault{reason, -1, text}
	}
	if f := b.checkLabels(s, l); f != nil {
		return f
	}
	return b.checkParts(s, l)
}

// checkLabels sorts the labels of a series, removes those without a value, and checks the others.
func (b validator) checkLabels(s *batch.Series, l Limits) *fault {
	if s.Refs.Len() > 0 {
		return nil // the decoder has already checked them, see Batch.EndRefs
	}
	labels := batch.Slice(b.Labels, s.Labels)
	facts := labelFacts{ascending: ascending(labels)}
	if !facts.ascending && len(labels) <= l.LabelsPerSeries {
		sortLabels(labels)
		s.Raw = batch.Span{}
	}
	facts.ascii = b.asciiLabels(s)
	f := checkSorted(labels, l, facts)
	if f != nil && f.reason == emptyValue {
		return checkSorted(b.dropEmpty(s), l, facts)
	}
	return f
}

// emptyValue is the reason for a label with an empty value. Such a label means the same as no
// label, so dropEmpty removes it.
const emptyValue = "empty_label_value"

// dropEmpty removes labels without a value, and returns the others.
func (b validator) dropEmpty(s *batch.Series) []batch.Label {
	kept := batch.Slice(b.Labels, s.Labels)[:0]
	for _, l := range batch.Slice(b.Labels, s.Labels) {
		if l.Value != "" || l.Name == "" { // keep labels without a name: they are a fault
			kept = append(kept, l)
		}
	}
	s.Labels.To = s.Labels.From + int32(len(kept))
	s.Raw = batch.Span{}
	return kept
}

// ascending reports whether each name is greater than the previous one: then the labels are sorted,
// and no name occurs twice.
func ascending(labels []batch.Label) bool {
	for i := 1; i < len(labels); i++ {
		one, next := labels[i-1].Name, labels[i].Name
		if len(one) > 0 && len(next) > 0 && one[0] < next[0] {
			continue // the first byte decides in most cases, without a function call
		}
		if one >= next {
			return false
		}
	}
	return true
}

// labelFacts holds facts about all labels of a series together.
type labelFacts struct{ ascending, ascii bool }

// fault is a fault of a series.
type fault struct {
	reason string
	label  int // index of the label, -1 for none
	text   string
}

func (f *fault) explain(labels []batch.Label) string {
	if f.label < 0 {
		return batch.Display(labels) + ": " + f.text
	}
	return fmt.Sprintf("%s: label %q: %s", batch.Display(labels), truncate.Text(labels[f.label].Name, 64), f.text)
}

// asciiLabels reports whether all labels of a series are ASCII, by one check of the series' bytes
// in the body. Checking each string would take much longer. False means unknown.
func (b validator) asciiLabels(s *batch.Series) bool {
	return s.Raw.To > 0 && isASCII(b.RawLabels(s))
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

// checkSorted checks sorted labels one by one, except for what facts says about all.
func checkSorted(labels []batch.Label, l Limits, facts labelFacts) *fault {
	if len(labels) > l.LabelsPerSeries {
		return &fault{"too_many_labels", -1, fmt.Sprintf("%d labels, at most %d are allowed", len(labels), l.LabelsPerSeries)}
	}
	named := false
	for i := range labels {
		name, value := labels[i].Name, labels[i].Value
		switch {
		case name == "":
			return &fault{"empty_label_name", i, "empty name"}
		case value == "" && name == batch.NameLabel:
			return &fault{"missing_name", -1, "no metric name (__name__)"}
		case value == "":
			return &fault{emptyValue, i, "empty value"}
		case !facts.ascending && i > 0 && labels[i-1].Name == name:
			return &fault{"duplicate_label", i, "given more than once"}
		case len(name) > int(l.LabelNameBytes):
			return &fault{"label_too_long", i, "name longer than " + l.LabelNameBytes.String()}
		case len(value) > int(l.LabelValueBytes):
			return &fault{"label_too_long", i, "value longer than " + l.LabelValueBytes.String()}
		case !facts.ascii && (!utf8.ValidString(name) || !utf8.ValidString(value)):
			return &fault{"invalid_utf8", i, "not UTF-8"}
		}
		named = named || name == batch.NameLabel
	}
	if !named {
		return &fault{"missing_name", -1, "no metric name (__name__)"}
	}
	return nil
}

// checkParts checks everything of a series except its labels.
func (b validator) checkParts(s *batch.Series, l Limits) *fault {
	if size := b.ReceivedSize(s); size > int(l.SeriesBytes) {
		return &fault{"series_too_large", -1, fmt.Sprintf("about %d bytes, at most %s are allowed", size, l.SeriesBytes)}
	}
	inRange := true
	for _, v := range batch.Slice(b.Samples, s.Samples) {
		inRange = inRange && isTimestamp(v.Timestamp) && isTimestamp(v.Start)
	}
	for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
		inRange = inRange && isTimestamp(e.Timestamp)
		if f := checkExemplar(batch.Slice(b.ExemplarLabels, e.Labels), l); f != nil {
			return f
		}
	}
	for i := range batch.Slice(b.Histograms, s.Histograms) {
		h := &batch.Slice(b.Histograms, s.Histograms)[i]
		inRange = inRange && isTimestamp(h.Timestamp) && isTimestamp(h.Start)
		if err := b.checkHistogram(h); err != nil {
			return &fault{"invalid_histogram", -1, err.Error()}
		}
	}
	if !inRange {
		return &fault{"timestamp_out_of_range", -1, "a timestamp that is not milliseconds of the years 1 to 9999"}
	}
	return nil
}

// checkExemplar sorts and checks the labels of an exemplar.
func checkExemplar(labels []batch.Label, l Limits) *fault {
	if len(labels) > l.LabelsPerSeries {
		text := fmt.Sprintf("an exemplar of %d labels, at most %d are allowed", len(labels), l.LabelsPerSeries)
		return &fault{"too_many_labels", -1, text}
	}
	if !ascending(labels) {
		sortLabels(labels)
	}
	for i, m := range labels {
		switch {
		case m.Name == "":
			return &fault{"empty_label_name", -1, "an exemplar's label has an empty name"}
		case i > 0 && labels[i-1].Name == m.Name:
			return &fault{"duplicate_label", -1, "an exemplar's label is given more than once"}
		case len(m.Name) > int(l.LabelNameBytes) || len(m.Value) > int(l.LabelValueBytes):
			return &fault{"label_too_long", -1, "an exemplar's label is too long"}
		case !utf8.ValidString(m.Name) || !utf8.ValidString(m.Value):
			return &fault{"invalid_utf8", -1, "an exemplar's label is not UTF-8"}
		}
	}
	return nil
}

func sortLabels(labels []batch.Label) {
	slices.SortStableFunc(labels, func(a, b batch.Label) int { return cmp.Compare(a.Name, b.Name) })
}

// isTimestamp reports whether a timestamp is milliseconds in the years 1 to 9999, which the usual
// notations of dates can express. Zero and very old timestamps are allowed: backfills and tests use
// them. Other values are mistakes, most often microseconds, on which consumers would fail.
func isTimestamp(t int64) bool { return t >= -62_135_596_800_000 && t <= 253_402_300_799_999 }
