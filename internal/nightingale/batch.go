package nightingale

// batch is a decoded request, neutral of protocol. Everything of one kind stands
// in one slice, and series refer to their parts by extent, so that a reused batch
// costs no allocation. Strings alias the request's body.
type batch struct {
	body       []byte // of a version 1 request, which the series' raw spans are in
	series     []series
	labels     []label // of series
	samples    []sample
	exemplars  []exemplar
	marks      []label // labels of exemplars
	histograms []histogram
	buckets    buckets
	metadata   []metadata // of whole families, as version 1 has it
	elements   elements   // bounds what all of these take

	exemplarSeries bool // series with exemplars only are valid

	// Of version 2:
	symbols   []string
	about     []metadata // of series
	aboutRefs aboutV2    // where the last of about came from
	expanded  int        // bytes that references stand for

	// Of the symbolic form:
	form         form
	bounds       labelBounds
	refs         []uint32 // labels of series: references of names and values, in turn
	info         []uint32 // of each symbol
	symbolBytes  int      // of their texts
	ordered      extent   // of refs: the last ones that were found usable
	orderedBytes int32    // what they stand for
	orderedRaw   []byte   // the same in the body of a 1.0 request, where they are plain there
	table        symbolTable
	packer       symbolPacker
}

// extent is a part of one of the batch's slices.
type extent struct{ from, to int32 }

func of[T any](slice []T, e extent) []T { return slice[e.from:e.to] }

func (e extent) len() int { return int(e.to - e.from) }

// mark returns an empty extent at the end of a slice; close makes it reach to the
// slice's new end. The limit of the decoded size keeps lengths far below 2^31.
func mark[T any](slice []T) extent              { return extent{int32(len(slice)), int32(len(slice))} }
func upTo[T any](from extent, slice []T) extent { return extent{from.from, int32(len(slice))} }

type series struct {
	labels     extent
	refs       extent // the same labels in the symbolic form; empty where they are texts alone
	samples    extent
	exemplars  extent
	histograms extent
	key        uint64    // hash of the sorted labels
	about      *metadata // of the series' family; nil when not known
	flaw       flaw
	labelBytes int32 // what refs stand for
	raw        span  // the series as it stands in the body
}

// span is a field of the request's body: from its tag to its end. head is the size
// of its tag and length, labels the size of what follows up to the end of the last
// label. plain tells that the labels stand first, one after the other, each as a
// protobuf encoder writes it. The zero span is of a series that stands nowhere as it
// is now: its labels were sorted or changed, or it came in another protocol.
type span struct {
	from, to int32
	labels   int32
	head     uint8
	plain    bool
}

// entries is the number of samples, histograms and exemplars of the series.
func (s *series) entries() int { return s.samples.len() + s.histograms.len() + s.exemplars.len() }

// latest is the latest timestamp of what a series carries, 0 where none is later.
func (b *batch) latest(s *series) (latest int64) {
	for _, v := range of(b.samples, s.samples) {
		latest = max(latest, v.timestamp)
	}
	for i := range of(b.histograms, s.histograms) {
		latest = max(latest, of(b.histograms, s.histograms)[i].timestamp)
	}
	for _, e := range of(b.exemplars, s.exemplars) {
		latest = max(latest, e.timestamp)
	}
	return latest
}

// counts is how much there is of each kind.
type counts struct {
	series, samples, histograms, exemplars int
}

// entries is the number of samples of all kinds.
func (c *counts) entries() int { return c.samples + c.histograms + c.exemplars }

func (c *counts) add(s *series) {
	c.series++
	c.samples += s.samples.len()
	c.histograms += s.histograms.len()
	c.exemplars += s.exemplars.len()
}

func (c *counts) remove(s *series) {
	c.series--
	c.samples -= s.samples.len()
	c.histograms -= s.histograms.len()
	c.exemplars -= s.exemplars.len()
}

func (c counts) without(o counts) counts {
	return counts{c.series - o.series, c.samples - o.samples, c.histograms - o.histograms, c.exemplars - o.exemplars}
}

type label struct{ name, value string }

type sample struct {
	timestamp int64 // milliseconds
	start     int64 // when what is counted began, 0 when not known
	value     float64
}

type exemplar struct {
	labels    extent // in marks
	timestamp int64
	value     float64
}

// metadata describes a metric family. Its kind is "unknown" or one of Prometheus'
// names of types; family is empty where a series came with its own metadata.
type metadata struct {
	family, kind, help, unit string
	helpRef, unitRef         uint32 // of the symbols that help and unit are whole; 0 where they are not
}

// countKind tells whether a histogram's counts are integers.
type countKind uint8

const (
	noCount countKind = iota
	intCount
	floatCount
)

// histogram is a native histogram. Buckets are deltas to the previous bucket where
// counts are integers, and absolute counts where they are not.
type histogram struct {
	timestamp     int64
	start         int64 // as a sample's
	sum           float64
	zeroThreshold float64
	schema        int32
	resetHint     int32
	countKind     countKind
	zeroKind      countKind
	count         uint64
	countFloat    float64
	zeroCount     uint64
	zeroFloat     float64

	positiveSpans, negativeSpans   extent
	positiveDeltas, negativeDeltas extent
	positiveCounts, negativeCounts extent
	customValues                   extent
}

type bucketSpan struct {
	offset int32
	length uint32
}

// buckets holds the buckets of all histograms of a batch. Each repeated field has
// a slice of its own: a sender may interleave the fields of one histogram.
type buckets struct {
	positiveSpans, negativeSpans   []bucketSpan
	positiveDeltas, negativeDeltas []int64
	positiveCounts, negativeCounts []float64
	customValues                   []float64
}

// reset empties the batch. References to the body are left where they stand: it is
// memory of the same workspace, and clearing ten labels per series takes longer than
// decoding them.
func (b *batch) reset() {
	b.body = nil
	b.series = b.series[:0]
	b.labels = b.labels[:0]
	b.samples = b.samples[:0]
	b.exemplars = b.exemplars[:0]
	b.marks = b.marks[:0]
	b.histograms = b.histograms[:0]
	b.metadata = b.metadata[:0]
	b.symbols, b.about, b.expanded = b.symbols[:0], b.about[:0], 0
	b.elements = elements{}
	b.form, b.ordered, b.orderedRaw = form{}, extent{}, nil
	b.refs, b.info, b.symbolBytes = b.refs[:0], b.info[:0], 0
	b.table.reset()
	b.packer.reset()
	k := &b.buckets
	*k = buckets{
		k.positiveSpans[:0], k.negativeSpans[:0],
		k.positiveDeltas[:0], k.negativeDeltas[:0],
		k.positiveCounts[:0], k.negativeCounts[:0],
		k.customValues[:0],
	}
}

// size is the memory that the batch has room for.
func (b *batch) size() int {
	k := &b.buckets
	return cap(b.series)*seriesBytes + (cap(b.labels)+cap(b.marks))*labelBytes + cap(b.samples)*sampleBytes +
		cap(b.exemplars)*exemplarBytes + cap(b.histograms)*histogramBytes + (cap(b.metadata)+cap(b.about))*metadataBytes +
		cap(b.symbols)*symbolBytes + (cap(b.refs)+cap(b.info))*refBytes + cap(b.table.slots)*slotBytes + b.packer.size() +
		(cap(k.positiveSpans)+cap(k.negativeSpans))*spanBytes +
		(cap(k.positiveDeltas)+cap(k.negativeDeltas)+cap(k.positiveCounts)+cap(k.negativeCounts)+cap(k.customValues))*bucketBytes
}
