package remotewrite

import "github.com/aviaryhq/aviary/internal/nightingale/batch"

// Timestamps must be milliseconds in the years 1 to 9999, which the usual notations of dates can
// express. Very old timestamps, and zero, are allowed: backfills and tests use them. Other values
// are mistakes, most often microseconds or nanoseconds. Consumers would fail on them, far from the
// cause.
const (
	minTimestamp = -62_135_596_800_000
	maxTimestamp = 253_402_300_799_999
)

func inRange(timestamp int64) bool { return timestamp >= minTimestamp && timestamp <= maxTimestamp }

// checkTimestamps checks all timestamps of a series, including start timestamps; a start of 0 means
// none.
func (b validator) checkTimestamps(s *batch.Series) bool {
	samples, histograms, exemplars := batch.Slice(b.Samples, s.Samples), batch.Slice(b.Histograms, s.Histograms), batch.Slice(b.Exemplars, s.Exemplars)
	for i := range samples {
		if !inRange(samples[i].Timestamp) || !inRange(samples[i].Start) {
			return false
		}
	}
	for i := range histograms {
		if !inRange(histograms[i].Timestamp) || !inRange(histograms[i].Start) {
			return false
		}
	}
	for i := range exemplars {
		if !inRange(exemplars[i].Timestamp) {
			return false
		}
	}
	return true
}
