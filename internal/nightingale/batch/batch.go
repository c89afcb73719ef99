// Package batch holds a decoded remote write request, independent of protocol and format: series
// with their labels, samples, exemplars, histograms and metadata. It keeps them in reusable slices
// that need no new allocation, and bounds their memory.
//
// Decoders fill a [Batch], validation and rules change it, and formats read it. Strings of a batch
// alias the request's body.
package batch

import "math"

// Batch is a decoded request, independent of protocol. All elements of one kind are in one slice,
// and series refer to their elements by extent, so that a reused batch needs no allocation. Strings
// alias the request's body.
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

	// Only in version 2:
	Symbols        []string
	SeriesMetadata []Metadata   // of series
	LastMetadata   MetadataRefs // references of the last element of SeriesMetadata
	Expanded       int          // bytes that the references expand to

	// References asks for series that hold their labels as references only, and for no keys: the
	// format packed needs neither texts nor, mostly, keys. See symbols.go.
	References   bool
	Bounds       LabelBounds
	Refs         []uint32 // labels of series: alternating references of names and values
	chargedRefs  int      // how many Refs are charged, see GrowRefs
	Info         []uint32 // of each symbol
	SymbolBytes  int      // of their texts
	Ordered      Extent   // extent in Refs of the last usable references
	OrderedBytes int32    // bytes that these expand to
	OrderedRaw   []byte   // the same labels in the body of a 1.0 request, if they are plain there
	recent       []uint32 // the latest reference of a text, by its hash: see Intern
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

// Counts is the number of elements of each kind.
type Counts struct {
	Series, Samples, Histograms, Exemplars int
}

// Entries returns the number of samples of all kinds.
func (c *Counts) Entries() int { return c.Samples + c.Histograms + c.Exemplars }

// Add adds a series and its entries.
func (c *Counts) Add(s *Series) {
	c.Series++
	c.Samples += s.Samples.Len()
	c.Histograms += s.Histograms.Len()
	c.Exemplars += s.Exemplars.Len()
}

// Remove subtracts what Add has added.
func (c *Counts) Remove(s *Series) {
	c.Series--
	c.Samples -= s.Samples.Len()
	c.Histograms -= s.Histograms.Len()
	c.Exemplars -= s.Exemplars.Len()
}

// Plus returns the sum of c and o.
func (c Counts) Plus(o Counts) Counts {
	return Counts{c.Series + o.Series, c.Samples + o.Samples, c.Histograms + o.Histograms, c.Exemplars + o.Exemplars}
}

// Without returns the difference of c and o.
func (c Counts) Without(o Counts) Counts {
	return Counts{c.Series - o.Series, c.Samples - o.Samples, c.Histograms - o.Histograms, c.Exemplars - o.Exemplars}
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

// Metadata describes a metric family. Family is empty if the metadata came with a series.
type Metadata struct {
	Family, Help, Unit string
	Type               MetricType
	Invalid            bool   // the texts are not UTF-8: Validate removes it
	HelpRef, UnitRef   uint32 // references of Help and Unit, if they are complete symbols; otherwise 0
}

// MetadataRefs is a series' metadata in version 2, with references to symbols. Several pieces of
// metadata for a series are merged.
type MetadataRefs struct {
	Type       int32
	Help, Unit uint32
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

	PositiveSpans, NegativeSpans   Extent
	PositiveDeltas, NegativeDeltas Extent
	PositiveCounts, NegativeCounts Extent
	CustomValues                   Extent
}

// BucketSpan is a run of consecutive buckets: its Offset from the end of the previous run, and its
// Length.
type BucketSpan struct {
	Offset int32
	Length uint32
}

// buckets holds the buckets of all histograms of a batch. Each repeated field has its own slice,
// because a sender may interleave the fields of a histogram.
type buckets struct {
	PositiveSpans, NegativeSpans   []BucketSpan
	PositiveDeltas, NegativeDeltas []int64
	PositiveCounts, NegativeCounts []float64
	CustomValues                   []float64
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
	b.References, b.Ordered, b.OrderedRaw = false, Extent{}, nil
	b.Refs, b.chargedRefs, b.Info, b.SymbolBytes = b.Refs[:0], 0, b.Info[:0], 0
	b.recent = b.recent[:0]
	k := &b.Buckets
	*k = buckets{
		k.PositiveSpans[:0], k.NegativeSpans[:0],
		k.PositiveDeltas[:0], k.NegativeDeltas[:0],
		k.PositiveCounts[:0], k.NegativeCounts[:0],
		k.CustomValues[:0],
	}
}

// Size returns the allocated memory of the batch in bytes.
func (b *Batch) Size() int {
	k := &b.Buckets
	return cap(b.Series)*SeriesBytes + (cap(b.Labels)+cap(b.ExemplarLabels))*LabelBytes + cap(b.Samples)*SampleBytes +
		cap(b.Exemplars)*ExemplarBytes + cap(b.Histograms)*HistogramBytes + (cap(b.Metadata)+cap(b.SeriesMetadata))*MetadataBytes +
		cap(b.Symbols)*SymbolBytes + (cap(b.Refs)+cap(b.Info))*RefBytes + cap(b.recent)*RefBytes +
		(cap(k.PositiveSpans)+cap(k.NegativeSpans))*SpanBytes +
		(cap(k.PositiveDeltas)+cap(k.NegativeDeltas)+cap(k.PositiveCounts)+cap(k.NegativeCounts)+cap(k.CustomValues))*BucketBytes
}

// IsStale reports whether v is Prometheus' stale marker, a NaN with special bits.
func IsStale(v float64) bool { return math.Float64bits(v) == 0x7ff0000000000002 }
