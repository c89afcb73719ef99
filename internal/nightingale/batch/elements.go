package batch

import (
	"unsafe"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Memory of the elements of a batch, in bytes. A small body can contain many elements: an empty
// histogram takes two bytes.
const (
	SeriesBytes    = int(unsafe.Sizeof(Series{}))
	LabelBytes     = int(unsafe.Sizeof(Label{}))
	SampleBytes    = int(unsafe.Sizeof(Sample{}))
	ExemplarBytes  = int(unsafe.Sizeof(Exemplar{}))
	HistogramBytes = int(unsafe.Sizeof(Histogram{}))
	SpanBytes      = int(unsafe.Sizeof(BucketSpan{}))
	BucketBytes    = 8 // of a delta, a count or a bound
	MetadataBytes  = int(unsafe.Sizeof(Metadata{}))
	SymbolBytes    = int(unsafe.Sizeof(""))
)

// Elements bounds the memory of a request's decoded elements. It reserves memory in steps, before
// the elements are appended.
type Elements struct {
	Limit    int
	Hold     *admission.Hold // reserves the steps from the bytes in flight; nil: only Limit applies
	Reserved int             // reserved so far
	Free     int             // of Reserved, not charged yet
}

// minStep is the minimum step, so that small requests reserve memory rarely.
const minStep = 16 << 10

// Charge accounts for n bytes. It returns a 413 error beyond the limit, and the error of Hold if
// the bytes in flight are used up.
func (e *Elements) Charge(n int) error {
	if e.Free -= n; e.Free >= 0 {
		return nil
	}
	return e.reserve(-e.Free)
}

// reserve reserves at least need more bytes.
func (e *Elements) reserve(need int) error {
	if need > e.Limit-e.Reserved {
		return refusal.TooLarge("memory_bytes", "the request takes more than %d bytes in memory", e.Limit)
	}
	step := min(max(need, e.Reserved/2, minStep), e.Limit-e.Reserved)
	if e.Hold != nil {
		if err := e.Hold.Grow(int64(step)); err != nil {
			return err
		}
	}
	e.Reserved += step
	e.Free += step
	return nil
}
