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
	switch {
	case h.Schema == customSchema:
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
	float, total := h.CountKind == batch.FloatCount, h.ZeroCount
	for i, side := range [...]string{batch.Positive: "positive", batch.Negative: "negative"} {
		deltas, counts := batch.Slice(b.Buckets.Deltas[i], h.Deltas[i]), batch.Slice(b.Buckets.Counts[i], h.Counts[i])
		switch {
		case float && len(deltas) > 0:
			return errors.New("histogram with float counts has integer buckets")
		case !float && len(counts) > 0:
			return errors.New("histogram with integer counts has float buckets")
		}
		sum, err := checkBuckets(side, batch.Slice(b.Buckets.Spans[i], h.Spans[i]), deltas, counts)
		if err != nil {
			return err
		}
		total += sum
	}
	// Observations of NaN are counted, but are in no bucket.
	if !float && (total > h.Count || total < h.Count && !math.IsNaN(h.Sum)) {
		return fmt.Errorf("histogram has the count %d, but its buckets have %d observations", h.Count, total)
	}
	return nil
}

// checkCustom checks a histogram with custom buckets: its upper bounds must ascend and be less than
// infinity, and the spans must be within them.
func (b validator) checkCustom(h *batch.Histogram) error {
	if h.Spans[batch.Negative].Len()+h.Deltas[batch.Negative].Len()+h.Counts[batch.Negative].Len() > 0 {
		return errors.New("histogram with custom buckets has negative buckets")
	}
	if h.ZeroThreshold != 0 || h.ZeroKind == batch.IntCount && h.ZeroCount != 0 ||
		h.ZeroKind == batch.FloatCount && h.ZeroFloat != 0 {
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
	var last uint64
	for _, s := range batch.Slice(b.Buckets.Spans[batch.Positive], h.Spans[batch.Positive]) {
		if s.Offset < 0 {
			return errors.New("histogram with custom buckets has a span before the first bucket")
		}
		last += uint64(s.Offset) + uint64(s.Length)
	}
	if last > uint64(len(bounds))+1 {
		return fmt.Errorf("histogram has %d custom bounds for %d buckets", len(bounds), last)
	}
	return nil
}

// checkBuckets checks the buckets of one side. It returns the sum of integer counts.
func checkBuckets(side string, spans []batch.BucketSpan, deltas []int64, counts []float64) (sum uint64, err error) {
	var count int64
	negative := false
	for _, d := range deltas {
		count += d
		negative = negative || count < 0
		sum += uint64(count)
	}
	for _, c := range counts {
		negative = negative || c < 0
	}
	if negative {
		return 0, fmt.Errorf("histogram has a %s bucket with a negative count", side)
	}
	var inSpans uint64
	for i, s := range spans {
		if i > 0 && s.Offset < 0 {
			return 0, fmt.Errorf("histogram has %s spans that overlap", side)
		}
		inSpans += uint64(s.Length)
	}
	if buckets := len(deltas) + len(counts); inSpans != uint64(buckets) {
		return 0, fmt.Errorf("histogram has %s spans for %d buckets, but %d buckets", side, inSpans, buckets)
	}
	return sum, nil
}
