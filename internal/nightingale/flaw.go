package nightingale

// flaw is what a decoder has found wrong with one series of a request that can be
// read. The series is not written; the others are.
type flaw uint8

const (
	flawless flaw = iota
	flawReference
	flawOddReferences
	flawBoth
	flawNeither
)

// What becomes of series with exemplars only.
const (
	refuseSeries = "refuse"
	acceptSeries = "accept"
)

// flawOf returns what is wrong with a series, as far as the decoder has seen it.
func (b *batch) flawOf(s *series) flaw {
	if s.flaw == flawNeither && b.exemplarSeries && s.exemplars.len() > 0 {
		return flawless // no other flaw: it is the last of the list
	}
	return s.flaw
}

// note keeps the flaw that stands first in the list, in whatever order they are found.
func (s *series) note(f flaw) {
	if f != flawless && (s.flaw == flawless || f < s.flaw) {
		s.flaw = f
	}
}

func (f flaw) explain() (reason, text string) {
	switch f {
	case flawReference:
		return "reference_out_of_bounds", "a reference to a symbol that is not there"
	case flawOddReferences:
		return "odd_references", "an odd number of label references"
	case flawBoth:
		return "samples_and_histograms", "both samples and histograms"
	default:
		return "no_samples", "neither samples nor histograms"
	}
}

// Timestamps are milliseconds of the years 1 to 9999, the dates that have a usual
// notation. Older ones than any clock's, and zero, are as good as others: backfills
// and tests have them. What lies beyond is not a time but a mistake, most often
// microseconds or nanoseconds, which consumers would choke on far from its cause.
const (
	minTimestamp = -62_135_596_800_000
	maxTimestamp = 253_402_300_799_999
)

func inRange(timestamp int64) bool { return timestamp >= minTimestamp && timestamp <= maxTimestamp }

// checkTimestamps looks at all that a series carries. Start timestamps are of the
// same kind; 0 is none.
func (b *batch) checkTimestamps(s *series) bool {
	samples, histograms, exemplars := of(b.samples, s.samples), of(b.histograms, s.histograms), of(b.exemplars, s.exemplars)
	for i := range samples {
		if !inRange(samples[i].timestamp) || !inRange(samples[i].start) {
			return false
		}
	}
	for i := range histograms {
		if !inRange(histograms[i].timestamp) || !inRange(histograms[i].start) {
			return false
		}
	}
	for i := range exemplars {
		if !inRange(exemplars[i].timestamp) {
			return false
		}
	}
	return true
}
