package batch

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

// ErrorOf returns the error that the decoder has found in a series.
func (b *Batch) ErrorOf(s *Series) SeriesError {
	if s.Err == NoSamples && b.ExemplarSeries && s.Exemplars.Len() > 0 {
		return NoError // there is no other error: NoSamples is the last of the list
	}
	return s.Err
}

// SetError sets an error, unless the series has one that comes earlier in the list.
func (s *Series) SetError(f SeriesError) {
	if f != NoError && (s.Err == NoError || f < s.Err) {
		s.Err = f
	}
}

// Explain returns the reason's label value in the metric, and a text for the sender.
func (f SeriesError) Explain() (reason, text string) {
	switch f {
	case ReferenceOutOfBounds:
		return "reference_out_of_bounds", "a reference to a symbol that is not there"
	case OddReferences:
		return "odd_references", "an odd number of label references"
	case SamplesAndHistograms:
		return "samples_and_histograms", "both samples and histograms"
	default:
		return "no_samples", "neither samples nor histograms"
	}
}
