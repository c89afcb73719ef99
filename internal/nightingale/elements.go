package nightingale

import (
	"unsafe"

	"github.com/aviaryhq/aviary/internal/door"
)

// What the elements of a batch take in memory. Few bytes of a body can make many of
// them: an empty histogram has two.
const (
	seriesBytes    = int(unsafe.Sizeof(series{}))
	labelBytes     = int(unsafe.Sizeof(label{}))
	sampleBytes    = int(unsafe.Sizeof(sample{}))
	exemplarBytes  = int(unsafe.Sizeof(exemplar{}))
	histogramBytes = int(unsafe.Sizeof(histogram{}))
	spanBytes      = int(unsafe.Sizeof(bucketSpan{}))
	bucketBytes    = 8 // of a delta, a count or a bound
	metadataBytes  = int(unsafe.Sizeof(metadata{}))
	symbolBytes    = int(unsafe.Sizeof(""))
)

// elements is the memory that a request's decoded elements may take. It is reserved
// in steps, each before what it is for is appended.
type elements struct {
	limit int
	held  *door.Hold // takes the steps from the bytes in flight; nil for no bound but the limit
	taken int        // reserved so far
	left  int        // of it
}

// leastStep keeps small requests from reserving often.
const leastStep = 16 << 10

// charge accounts for n bytes. It refuses with 413 past the limit, and as the bytes
// in flight do where they leave no room.
func (e *elements) charge(n int) error {
	if e.left -= n; e.left >= 0 {
		return nil
	}
	return e.reserve(-e.left)
}

// reserve makes room for at least need bytes more.
func (e *elements) reserve(need int) error {
	if need > e.limit-e.taken {
		return door.TooLarge("memory_bytes", "the request takes more than %d bytes in memory", e.limit)
	}
	step := min(max(need, e.taken/2, leastStep), e.limit-e.taken)
	if e.held != nil {
		if err := e.held.Grow(int64(step)); err != nil {
			return err
		}
	}
	e.taken += step
	e.left += step
	return nil
}

// chargeAbout charges the texts of metadata from the given one on, which are copies
// where they are cut.
func (b *batch) chargeAbout(from int) error {
	n := 0
	for _, m := range b.about[from:] {
		n += len(m.help) + len(m.unit)
	}
	return b.elements.charge(n)
}

// labelRoom returns how many labels may be appended, at least one; useLabels charges
// those that were. Labels are most of a request: asking for each takes longer.
func (e *elements) labelRoom() (int, error) {
	if e.left < labelBytes {
		if err := e.reserve(labelBytes - e.left); err != nil {
			return 0, err
		}
	}
	return e.left / labelBytes, nil
}

func (e *elements) useLabels(n int) { e.left -= n * labelBytes }
