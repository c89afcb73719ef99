package nightingale

import (
	"math"
	"net/http"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKeysAreStable pins keys: consumers and the topic's partitions depend on them.
func TestKeysAreStable(t *testing.T) {
	sum, _ := key([]label{{"__name__", "up"}, {"instance", "a:9090"}, {"job", "node"}}, nil)
	assert.Equal(t, xxhash.Sum64String("\n\x0e\n\x08__name__\x12\x02up\n\x12\n\x08instance\x12\x06a:9090\n\x0b\n\x03job\x12\x04node"), sum)
	assert.Equal(t, "53483b4940c38fae", string(appendKey(nil, sum)))
	other, _ := key([]label{{"__name__", "up"}, {"instance", "a:9090j"}, {"ob", "node"}}, nil)
	assert.NotEqual(t, sum, other)
}

func TestHistogramsThatMakeNoSense(t *testing.T) {
	usual := func() prompb.Histogram { return everything().Timeseries[1].Histograms[0] }
	float := func() prompb.Histogram { return everything().Timeseries[1].Histograms[1] }
	for _, test := range []struct {
		name   string
		make   func() prompb.Histogram
		change func(*prompb.Histogram)
		says   string
	}{
		{"as it should be", usual, func(*prompb.Histogram) {}, ""},
		{"floats as they should be", float, func(*prompb.Histogram) {}, ""},
		{"count too high", usual, func(h *prompb.Histogram) { h.Count = &prompb.Histogram_CountInt{CountInt: 11} }, "counts 11"},
		{"count too high for a sum of NaN", usual, func(h *prompb.Histogram) {
			h.Count, h.Sum = &prompb.Histogram_CountInt{CountInt: 11}, math.NaN()
		}, ""},
		{"count too low", usual, func(h *prompb.Histogram) { h.Count = &prompb.Histogram_CountInt{CountInt: 9} }, "counts 9"},
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
			b := new(batch)
			require.NoError(t, decodeV1(b, marshal(t, req), testLimits()))
			bad, _ := b.validate(testLimits(), nil)
			if test.says == "" {
				assert.Empty(t, bad.first)
				return
			}
			require.Len(t, bad.first, 1)
			assert.Contains(t, bad.first[0], test.says)
		})
	}
}

// TestSeriesLargerThanAMessage: the broker would not store it, whatever else the
// request has is written and counted.
func TestSeriesLargerThanAMessage(t *testing.T) {
	req := request(3, 3)
	for len(req.Timeseries[1].Samples) < 100_000 {
		req.Timeseries[1].Samples = append(req.Timeseries[1].Samples, prompb.Sample{Value: 1, Timestamp: 5})
	}
	d := newDouble(t, nil)
	status, text, _ := d.post(t, compress(marshal(t, req)))
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, text, "1 of 3 series are invalid")
	assert.Contains(t, text, "at most 1MiB are allowed")
	assert.Len(t, d.published(), 2)
}

// TestLabelsWithoutAValueAreDropped: the series is the same as one without them, to
// its key, in every format.
func TestLabelsWithoutAValueAreDropped(t *testing.T) {
	want := oneSeries("__name__", "m", "job", "api")
	for _, labels := range [][]string{
		{"__name__", "m", "a", "", "job", "api"},
		{"job", "api", "z", "", "__name__", "m", "b", ""},
		{"__name__", "m", "job", "", "job", "api"},
	} {
		for _, format := range formatNames() {
			published := func(req *prompb.WriteRequest) []string {
				d := newDouble(t, func(c *Config) { c.Format = format })
				status, text, _ := d.post(t, compress(marshal(t, req)))
				require.Equal(t, http.StatusNoContent, status, text)
				return d.published()
			}
			assert.Equal(t, published(want), published(oneSeries(labels...)), "%s of %q", format, labels)
		}
	}
	d := newDouble(t, nil)
	for _, labels := range [][]string{{"__name__", "", "a", ""}, {"a", ""}, {"__name__", "m", "", ""}} {
		status, text, _ := d.post(t, compress(marshal(t, oneSeries(labels...))))
		assert.Equal(t, http.StatusBadRequest, status, "%q: %s", labels, text)
	}
}
