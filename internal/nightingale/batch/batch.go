// Package batch holds a decoded request, independent of protocol and format: series with labels,
// samples, exemplars, histograms and metadata. It reuses its memory for further requests and bounds
// it. Decoders fill a [Batch], validation and rules change it, formats read it. Its strings point
// into the decoded body. It must not import another package of Nightingale.
package batch

import "math"

// Batch is a decoded request. All elements of one kind are in one slice, and series refer to their
// elements by extent, so that a reused batch needs no allocation.
type Batch struct {
	Body           []byte // body of a version 1 request, to which the series' Raw spans refer
	Series         []Series
	Labels         []Label // of series
	Samples        []Sample
	Exemplars      []Exemplar
	ExemplarLabels []Label // labels of exemplars
	Histograms     []Histogram
	Buckets        buckets
	Metadata       []Metadata // of whole families, as in version 1
	Elements       Elements   // bounds the memory of all these elements

	ExemplarSeries bool // series with exemplars only are valid

	SeriesMetadata []Metadata   // of series, as in version 2
	LastMetadata   MetadataRefs // references of the last element of SeriesMetadata
	Expanded       int          // bytes that the references expand to; bounded in version 2

	// References asks for series that hold their labels as references only, and for no keys: the
	// format packed needs neither texts nor, mostly, keys. See symbols.go.
	References    bool
	Bounds        LabelBounds
	Symbols       []string
	Refs          []uint32 // labels of series: alternating references of names and values
	chargedRefs   int      // how many Refs are charged, see GrowRefs
	Info          []uint32 // of each symbol
	SymbolBytes   int      // of their texts
	PreviousRefs  Extent   // extent in Refs of the last valid labels
	PreviousBytes int32    // bytes that these expand to
	PreviousRaw   []byte   // the same labels in the body of a 1.0 request, if they are plain there
	recent        []uint32 // the latest reference of a text, by its hash: see Intern
}

// Extent is a part of one of the batch's slices.
type Extent struct{ From, To int32 }

// Slice returns the part of a slice that an extent names.
func Slice[T any](slice []T, e Extent) []T { return slice[e.From:e.To] }

// Len returns the number of elements.
func (e Extent) Len() int { return int(e.To - e.From) }

// Start returns an empty extent at the end of a slice. Until extends it to the slice's new end. The
// limit of the decoded size keeps lengths far below 2^31.
func Start[T any](slice []T) Extent { return Extent{int32(len(slice)), int32(len(slice))} }

// Until returns the extent from the beginning of another one to the end of the slice.
func Until[T any](from Extent, slice []T) Extent { return Extent{from.From, int32(len(slice))} }

// Series is one time series of a request: its labels and its samples, exemplars and histograms.
type Series struct {
	Labels     Extent
	Refs       Extent // the same labels as references; empty if they are only texts
	Samples    Extent
	Exemplars  Extent
	Histograms Extent
	Key        uint64    // hash of the sorted labels
	Metadata   *Metadata // of the series' family; nil if unknown
	Err        SeriesError
	LabelBytes int32 // bytes that Refs expand to
	Raw        Span  // the series in the body
}

// SeriesError is a decoder's error for one series of a readable request. The series is not written,
// but the others are.
type SeriesError uint8

// Errors of a series. Of several errors, the one that comes first in this list is reported.
const (
	NoError SeriesError = iota
	ReferenceOutOfBounds
	OddReferences
	SamplesAndHistograms
	NoSamples
)

// SetError sets an error, unless the series has one that comes earlier in the list.
func (s *Series) SetError(e SeriesError) {
	if s.Err == NoError || e < s.Err {
		s.Err = e
	}
}

// Explain returns the reason's label value in the metric, and a text for the sender.
func (e SeriesError) Explain() (reason, text string) {
	explained := [...][2]string{
		ReferenceOutOfBounds: {"reference_out_of_bounds", "a reference to a symbol that is not there"},
		OddReferences:        {"odd_references", "an odd number of label references"},
		SamplesAndHistograms: {"samples_and_histograms", "both samples and histograms"},
		NoSamples:            {"no_samples", "neither samples nor histograms"},
	}[e]
	return explained[0], explained[1]
}

// Span is the position of a series in the request's body, without its tag and length. Labels is the
// size from there to the end of the last label. PlainLabels says that the labels come first, one
// after the other, each in the form that a protobuf encoder writes.
//
// A series has the zero Span if the body does not contain it in its present form: its labels were
// sorted or changed, or the protocol is another one.
type Span struct {
	From, To    int32
	Labels      int32
	PlainLabels bool
}

// Entries returns the number of samples, histograms and exemplars of the series.
func (s *Series) Entries() int { return s.Samples.Len() + s.Histograms.Len() + s.Exemplars.Len() }

// Cost returns how many samples the batch counts for in the tenant's quota: its samples of all kinds
// and its metadata entries. A series without samples counts as one.
func (b *Batch) Cost() int {
	cost := len(b.Metadata)
	for i := range b.Series {
		cost += max(b.Series[i].Entries(), 1)
	}
	return cost
}

// Latest returns the latest timestamp of a series' samples, histograms and exemplars, at least 0.
func (b *Batch) Latest(s *Series) (latest int64) {
	for _, v := range Slice(b.Samples, s.Samples) {
		latest = max(latest, v.Timestamp)
	}
	for i := range Slice(b.Histograms, s.Histograms) {
		latest = max(latest, Slice(b.Histograms, s.Histograms)[i].Timestamp)
	}
	for _, e := range Slice(b.Exemplars, s.Exemplars) {
		latest = max(latest, e.Timestamp)
	}
	return latest
}

// Counts is the number of series, and of their samples of each kind.
type Counts struct {
	Series, Samples, Histograms, Exemplars int
}

// Counts returns the number of samples of each kind of one series.
func (s *Series) Counts() Counts {
	return Counts{1, s.Samples.Len(), s.Histograms.Len(), s.Exemplars.Len()}
}

// Entries returns the number of samples of all kinds.
func (c *Counts) Entries() int { return c.Samples + c.Histograms + c.Exemplars }

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	*c = Counts{c.Series + o.Series, c.Samples + o.Samples, c.Histograms + o.Histograms, c.Exemplars + o.Exemplars}
}

// Subtract subtracts o from c.
func (c *Counts) Subtract(o Counts) {
	*c = Counts{c.Series - o.Series, c.Samples - o.Samples, c.Histograms - o.Histograms, c.Exemplars - o.Exemplars}
}

// Label is a name and a value.
type Label struct{ Name, Value string }

// Sample is a float sample.
type Sample struct {
	Timestamp int64 // milliseconds
	Start     int64 // when counting began, 0 if unknown
	Value     float64
}

// Exemplar is an exemplar of a series.
type Exemplar struct {
	Labels    Extent // in ExemplarLabels
	Timestamp int64
	Value     float64
}

// CountKind says whether a histogram's counts are integers.
type CountKind uint8

// Kinds of counts.
const (
	NoCount CountKind = iota
	IntCount
	FloatCount
)

// Histogram is a native histogram. Buckets are deltas to the previous bucket if counts are
// integers, and otherwise absolute counts.
type Histogram struct {
	Timestamp     int64
	Start         int64 // as in Sample
	Sum           float64
	ZeroThreshold float64
	Schema        int32
	ResetHint     int32
	CountKind     CountKind
	ZeroKind      CountKind
	Count         uint64
	CountFloat    float64
	ZeroCount     uint64
	ZeroFloat     float64

	Spans, Deltas, Counts [2]Extent // of Positive and Negative
	CustomValues          Extent
}

// Indexes of a histogram's two sides.
const (
	Positive = iota
	Negative
)

// BucketSpan is a run of consecutive buckets: its Offset from the end of the previous run, and its
// Length.
type BucketSpan struct {
	Offset int32
	Length uint32
}

// buckets holds the buckets of all histograms of a batch. Each repeated field has its own slice,
// because a sender may interleave the fields of a histogram.
type buckets struct {
	Spans        [2][]BucketSpan
	Deltas       [2][]int64
	Counts       [2][]float64
	CustomValues []float64
}

// Reset empties the batch. It does not clear strings that alias the body: the body is memory of the
// same workspace, and clearing ten labels per series takes longer than decoding them.
func (b *Batch) Reset() {
	b.Body = nil
	b.Series = b.Series[:0]
	b.Labels = b.Labels[:0]
	b.Samples = b.Samples[:0]
	b.Exemplars = b.Exemplars[:0]
	b.ExemplarLabels = b.ExemplarLabels[:0]
	b.Histograms = b.Histograms[:0]
	b.Metadata = b.Metadata[:0]
	b.Symbols, b.SeriesMetadata, b.Expanded = b.Symbols[:0], b.SeriesMetadata[:0], 0
	b.Elements = Elements{}
	b.References, b.PreviousRefs, b.PreviousRaw = false, Extent{}, nil
	b.Refs, b.chargedRefs, b.Info, b.SymbolBytes = b.Refs[:0], 0, b.Info[:0], 0
	b.recent = b.recent[:0]
	k := &b.Buckets
	for side := range k.Spans {
		k.Spans[side], k.Deltas[side], k.Counts[side] = k.Spans[side][:0], k.Deltas[side][:0], k.Counts[side][:0]
	}
	k.CustomValues = k.CustomValues[:0]
}

// Size returns the allocated memory of the batch in bytes.
func (b *Batch) Size() int {
	k := &b.Buckets
	size := cap(b.Series)*SeriesBytes + (cap(b.Labels)+cap(b.ExemplarLabels))*LabelBytes + cap(b.Samples)*SampleBytes +
		cap(b.Exemplars)*ExemplarBytes + cap(b.Histograms)*HistogramBytes + (cap(b.Metadata)+cap(b.SeriesMetadata))*MetadataBytes +
		cap(b.Symbols)*SymbolBytes + (cap(b.Refs)+cap(b.Info)+cap(b.recent))*RefBytes + cap(k.CustomValues)*BucketBytes
	for side := range k.Spans {
		size += cap(k.Spans[side])*SpanBytes + (cap(k.Deltas[side])+cap(k.Counts[side]))*BucketBytes
	}
	return size
}

// IsStale reports whether v is Prometheus' stale marker, a NaN with special bits.
func IsStale(v float64) bool { return math.Float64bits(v) == 0x7ff0000000000002 }
