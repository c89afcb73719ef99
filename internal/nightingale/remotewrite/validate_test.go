package remotewrite

import (
	"math"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// TestKeysAreStable pins keys: consumers and the topic's partitions depend on them.
func TestKeysAreStable(t *testing.T) {
	sum, _ := batch.KeyOf([]batch.Label{{Name: "__name__", Value: "up"}, {Name: "instance", Value: "a:9090"}, {Name: "job", Value: "node"}}, nil)
	assert.Equal(t, xxhash.Sum64String("\n\x0e\n\x08__name__\x12\x02up\n\x12\n\x08instance\x12\x06a:9090\n\x0b\n\x03job\x12\x04node"), sum)
	assert.Equal(t, "53483b4940c38fae", string(batch.AppendKey(nil, sum)))
	other, _ := batch.KeyOf([]batch.Label{{Name: "__name__", Value: "up"}, {Name: "instance", Value: "a:9090j"}, {Name: "ob", Value: "node"}}, nil)
	assert.NotEqual(t, sum, other)
}

func TestHistogramsThatMakeNoSense(t *testing.T) {
	usual := func() prompb.Histogram { return writetest.Everything().Timeseries[1].Histograms[0] }
	float := func() prompb.Histogram { return writetest.Everything().Timeseries[1].Histograms[1] }
	for _, test := range []struct {
		name   string
		make   func() prompb.Histogram
		change func(*prompb.Histogram)
		says   string
	}{
		{"as it should be", usual, func(*prompb.Histogram) {}, ""},
		{"floats as they should be", float, func(*prompb.Histogram) {}, ""},
		{"count too high", usual, func(h *prompb.Histogram) { h.Count = &prompb.Histogram_CountInt{CountInt: 11} }, "count 11"},
		{"count too high for a sum of NaN", usual, func(h *prompb.Histogram) {
			h.Count, h.Sum = &prompb.Histogram_CountInt{CountInt: 11}, math.NaN()
		}, ""},
		{"count too low", usual, func(h *prompb.Histogram) { h.Count = &prompb.Histogram_CountInt{CountInt: 9} }, "count 9"},
		{"no count", usual, func(h *prompb.Histogram) { h.Count = nil }, "without a count"},
		{"negative bucket", usual, func(h *prompb.Histogram) { h.PositiveDeltas = []int64{1, -2, 4} }, "negative count"},
		{"too few buckets", usual, func(h *prompb.Histogram) { h.PositiveDeltas = []int64{1, 1} }, "spans for 3"},
		{"overlapping spans", usual, func(h *prompb.Histogram) { h.PositiveSpans[1].Offset = -2 }, "overlap"},
		{"unknown schema", usual, func(h *prompb.Histogram) { h.Schema = 53 }, "schema 53"},
		{"lowest schema", usual, func(h *prompb.Histogram) { h.Schema = -9 }, ""},
		{"highest schema", usual, func(h *prompb.Histogram) { h.Schema = 52 }, ""},
		{"schema too low", usual, func(h *prompb.Histogram) { h.Schema = -10 }, "schema -10"},
		{"mixed counts", usual, func(h *prompb.Histogram) { h.ZeroCount = &prompb.Histogram_ZeroCountFloat{ZeroCountFloat: 1} }, "mixes"},
		{"float buckets with integer count", usual, func(h *prompb.Histogram) { h.PositiveCounts = []float64{1} }, "float buckets"},
		{"integer buckets with float count", float, func(h *prompb.Histogram) { h.PositiveDeltas = []int64{1} }, "integer buckets"},
		{"negative float bucket", float, func(h *prompb.Histogram) { h.PositiveCounts[0] = -1 }, "negative count"},
		{"custom buckets below zero", float, func(h *prompb.Histogram) { h.NegativeSpans = []prompb.BucketSpan{{Length: 1}} }, "negative buckets"},
		{"custom bounds without the schema", usual, func(h *prompb.Histogram) { h.CustomValues = []float64{1} }, "custom bounds"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := test.make()
			test.change(&h)
			req := &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
				Labels: []prompb.Label{{Name: "__name__", Value: "h"}}, Histograms: []prompb.Histogram{h},
			}}}
			b := new(batch.Batch)
			require.NoError(t, DecodeV1(b, writetest.Marshal(t, req), DefaultLimits()))
			bad, _ := Validate(b, DefaultLimits(), nil)
			if test.says == "" {
				assert.Empty(t, bad.First)
				return
			}
			require.Len(t, bad.First, 1)
			assert.Contains(t, bad.First[0], test.says)
		})
	}
}

// TestSeriesBytesAreThoseOfTheBody: an estimate for histograms and long labels would be too high.
func TestSeriesBytesAreThoseOfTheBody(t *testing.T) {
	req := &prompb.WriteRequest{Timeseries: writetest.Everything().Timeseries[1:]}
	body := writetest.Marshal(t, req)
	for add, valid := range map[int]int{0: 1, -1: 0} {
		limits := DefaultLimits()
		limits.SeriesBytes = config.Bytes(req.Timeseries[0].Size() + add)
		b := new(batch.Batch)
		require.NoError(t, DecodeV1(b, body, limits))
		Validate(b, limits, nil)
		assert.Len(t, b.Series, valid)
	}
}
