package remotewrite

import (
	"errors"
	"fmt"
	"math"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// The schemas of native histograms: exponential schemas that Prometheus accepts (it reads those
// above 8 at a lower resolution), and custom buckets.
const (
	minSchema    = -9
	maxSchema    = 52
	customSchema = -53
)

// checkHistogram returns an error for histograms that consumers could not interpret. It applies the
// rules of Prometheus' model/histogram: a known schema, spans that cover exactly the given buckets,
// and counts of one kind that are not negative.
func (b validator) checkHistogram(h *batch.Histogram) error {
	k := &b.Buckets
	switch {
	case h.Schema == customSchema:
		if h.NegativeSpans.Len() > 0 || h.NegativeDeltas.Len() > 0 || h.NegativeCounts.Len() > 0 {
			return errors.New("histogram with custom buckets has negative buckets")
		}
		if err := b.checkCustom(h); err != nil {
			return err
		}
	case h.Schema < minSchema || h.Schema > maxSchema:
		return fmt.Errorf("histogram schema %d is unknown", h.Schema)
	case h.CustomValues.Len() > 0:
		return errors.New("histogram with an exponential schema has custom bounds")
	}
	if h.CountKind == batch.NoCount {
		return errors.New("histogram without a count")
	}
	if h.ZeroKind != batch.NoCount && h.ZeroKind != h.CountKind {
		return errors.New("histogram mixes integer and float counts")
	}
	if h.CountKind == batch.FloatCount {
		if h.PositiveDeltas.Len() > 0 || h.NegativeDeltas.Len() > 0 {
			return errors.New("histogram with float counts has integer buckets")
		}
		return errors.Join(
			checkCounts("positive", batch.Slice(k.PositiveSpans, h.PositiveSpans), batch.Slice(k.PositiveCounts, h.PositiveCounts)),
			checkCounts("negative", batch.Slice(k.NegativeSpans, h.NegativeSpans), batch.Slice(k.NegativeCounts, h.NegativeCounts)))
	}
	if h.PositiveCounts.Len() > 0 || h.NegativeCounts.Len() > 0 {
		return errors.New("histogram with integer counts has float buckets")
	}
	positive, err := sumDeltas("positive", batch.Slice(k.PositiveSpans, h.PositiveSpans), batch.Slice(k.PositiveDeltas, h.PositiveDeltas))
	if err != nil {
		return err
	}
	negative, err := sumDeltas("negative", batch.Slice(k.NegativeSpans, h.NegativeSpans), batch.Slice(k.NegativeDeltas, h.NegativeDeltas))
	if err != nil {
		return err
	}
	// Observations of NaN are counted, but are in no bucket.
	total := positive + negative + h.ZeroCount
	if total > h.Count || total < h.Count && !math.IsNaN(h.Sum) {
		return fmt.Errorf("histogram counts %d observations, its buckets %d", h.Count, total)
	}
	return nil
}

// checkCustom checks a histogram with custom buckets: its upper bounds must ascend and be less than
// infinity, and the spans must be within them.
func (b validator) checkCustom(h *batch.Histogram) error {
	if h.ZeroThreshold != 0 || h.ZeroKind == batch.IntCount && h.ZeroCount != 0 || h.ZeroKind == batch.FloatCount && h.ZeroFloat != 0 {
		return errors.New("histogram with custom buckets has a zero bucket")
	}
	bounds := batch.Slice(b.Buckets.CustomValues, h.CustomValues)
	previous := math.Inf(-1)
	for i, bound := range bounds {
		if math.IsNaN(bound) || math.IsInf(bound, 1) || i > 0 && bound <= previous {
			return errors.New("histogram has custom bounds that do not rise, or are not finite")
		}
		previous = bound
	}
	var reach uint64
	for _, s := range batch.Slice(b.Buckets.PositiveSpans, h.PositiveSpans) {
		if s.Offset < 0 {
			return errors.New("histogram with custom buckets has a span before the first bucket")
		}
		reach += uint64(s.Offset) + uint64(s.Length)
	}
	if reach > uint64(len(bounds))+1 {
		return fmt.Errorf("histogram has %d custom bounds for %d buckets", len(bounds), reach)
	}
	return nil
}

func checkSpans(side string, spans []batch.BucketSpan, have int) error {
	var buckets uint64
	for i, s := range spans {
		if i > 0 && s.Offset < 0 {
			return fmt.Errorf("histogram has %s spans that overlap", side)
		}
		buckets += uint64(s.Length)
	}
	if buckets != uint64(have) {
		return fmt.Errorf("histogram has %s spans for %d buckets, and %d buckets", side, buckets, have)
	}
	return nil
}

func checkCounts(side string, spans []batch.BucketSpan, counts []float64) error {
	for _, c := range counts {
		if c < 0 {
			return fmt.Errorf("histogram has a %s bucket with a negative count", side)
		}
	}
	return checkSpans(side, spans, len(counts))
}

func sumDeltas(side string, spans []batch.BucketSpan, deltas []int64) (uint64, error) {
	var count int64
	var total uint64
	for _, d := range deltas {
		count += d
		if count < 0 {
			return 0, fmt.Errorf("histogram has a %s bucket with a negative count", side)
		}
		total += uint64(count)
	}
	return total, checkSpans(side, spans, len(deltas))
}
