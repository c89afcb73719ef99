package nightingale

import (
	"errors"
	"fmt"
	"math"
)

// The schemas of native histograms: exponential ones, as far as Prometheus knows them
// (it reads those above 8 at a lower resolution), and custom buckets.
const (
	minSchema    = -9
	maxSchema    = 52
	customSchema = -53
)

// checkHistogram refuses histograms that no consumer could make sense of, by the
// rules of Prometheus' model/histogram: known schema, spans that cover exactly the
// buckets given, counts of one kind and not negative.
func (b *batch) checkHistogram(h *histogram) error {
	k := &b.buckets
	switch {
	case h.schema == customSchema:
		if h.negativeSpans.len() > 0 || h.negativeDeltas.len() > 0 || h.negativeCounts.len() > 0 {
			return errors.New("histogram with custom buckets has negative buckets")
		}
		if err := b.checkCustom(h); err != nil {
			return err
		}
	case h.schema < minSchema || h.schema > maxSchema:
		return fmt.Errorf("histogram schema %d is unknown", h.schema)
	case h.customValues.len() > 0:
		return errors.New("histogram with an exponential schema has custom bounds")
	}
	if h.countKind == noCount {
		return errors.New("histogram without a count")
	}
	if h.zeroKind != noCount && h.zeroKind != h.countKind {
		return errors.New("histogram mixes integer and float counts")
	}
	if h.countKind == floatCount {
		if h.positiveDeltas.len() > 0 || h.negativeDeltas.len() > 0 {
			return errors.New("histogram with float counts has integer buckets")
		}
		return errors.Join(
			checkCounts("positive", of(k.positiveSpans, h.positiveSpans), of(k.positiveCounts, h.positiveCounts)),
			checkCounts("negative", of(k.negativeSpans, h.negativeSpans), of(k.negativeCounts, h.negativeCounts)))
	}
	if h.positiveCounts.len() > 0 || h.negativeCounts.len() > 0 {
		return errors.New("histogram with integer counts has float buckets")
	}
	positive, err := sumDeltas("positive", of(k.positiveSpans, h.positiveSpans), of(k.positiveDeltas, h.positiveDeltas))
	if err != nil {
		return err
	}
	negative, err := sumDeltas("negative", of(k.negativeSpans, h.negativeSpans), of(k.negativeDeltas, h.negativeDeltas))
	if err != nil {
		return err
	}
	// Observations of NaN count without being in a bucket.
	total := positive + negative + h.zeroCount
	if total > h.count || total < h.count && !math.IsNaN(h.sum) {
		return fmt.Errorf("histogram counts %d observations, its buckets %d", h.count, total)
	}
	return nil
}

// checkCustom looks at what custom buckets have besides: their upper bounds, which
// rise and end before infinity, and spans within them.
func (b *batch) checkCustom(h *histogram) error {
	if h.zeroThreshold != 0 || h.zeroKind == intCount && h.zeroCount != 0 || h.zeroKind == floatCount && h.zeroFloat != 0 {
		return errors.New("histogram with custom buckets has a zero bucket")
	}
	bounds := of(b.buckets.customValues, h.customValues)
	previous := math.Inf(-1)
	for i, bound := range bounds {
		if math.IsNaN(bound) || math.IsInf(bound, 1) || i > 0 && bound <= previous {
			return errors.New("histogram has custom bounds that do not rise, or are not finite")
		}
		previous = bound
	}
	var reach uint64
	for _, s := range of(b.buckets.positiveSpans, h.positiveSpans) {
		if s.offset < 0 {
			return errors.New("histogram with custom buckets has a span before the first bucket")
		}
		reach += uint64(s.offset) + uint64(s.length)
	}
	if reach > uint64(len(bounds))+1 {
		return fmt.Errorf("histogram has %d custom bounds for %d buckets", len(bounds), reach)
	}
	return nil
}

func checkSpans(side string, spans []bucketSpan, have int) error {
	var buckets uint64
	for i, s := range spans {
		if i > 0 && s.offset < 0 {
			return fmt.Errorf("histogram has %s spans that overlap", side)
		}
		buckets += uint64(s.length)
	}
	if buckets != uint64(have) {
		return fmt.Errorf("histogram has %s spans for %d buckets, and %d buckets", side, buckets, have)
	}
	return nil
}

func checkCounts(side string, spans []bucketSpan, counts []float64) error {
	for _, c := range counts {
		if c < 0 {
			return fmt.Errorf("histogram has a %s bucket with a negative count", side)
		}
	}
	return checkSpans(side, spans, len(counts))
}

func sumDeltas(side string, spans []bucketSpan, deltas []int64) (uint64, error) {
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
