// Package writetest makes and compares remote write requests for tests.
package writetest

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/require"
)

// Request returns a typical request: each series has labels labels and one sample.
func Request(series, labels int) *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for i := range series {
		ts := prompb.TimeSeries{
			Labels:  []prompb.Label{{Name: "__name__", Value: "http_requests_total"}},
			Samples: []prompb.Sample{{Timestamp: 1_700_000_000_000 + int64(i), Value: float64(i) + 0.5}},
		}
		for j := 1; j < labels; j++ {
			ts.Labels = append(ts.Labels, prompb.Label{Name: fmt.Sprintf("label_%02d", j), Value: fmt.Sprintf("value-%d-%d", i, j)})
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	return req
}

// Everything returns a request with every field that exists.
func Everything() *prompb.WriteRequest {
	labels := []prompb.Label{{Name: "__name__", Value: "latency"}, {Name: "job", Value: "api"}}
	return &prompb.WriteRequest{
		Timeseries: []prompb.TimeSeries{
			{
				Labels:  labels,
				Samples: []prompb.Sample{{Timestamp: 1, Value: 1.5}, {Timestamp: 2, Value: math.Float64frombits(0x7ff0000000000002)}, {Timestamp: -3, Value: math.Inf(-1)}},
				Exemplars: []prompb.Exemplar{
					{Labels: []prompb.Label{{Name: "trace_id", Value: "abc"}}, Value: 0.25, Timestamp: 7},
					{Value: 2, Timestamp: 8},
				},
			},
			{
				Labels: labels,
				Histograms: []prompb.Histogram{
					{
						Count: &prompb.Histogram_CountInt{CountInt: 10}, Sum: 12.5, Schema: -2, ZeroThreshold: 1e-128,
						ZeroCount:     &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1},
						PositiveSpans: []prompb.BucketSpan{{Offset: -1, Length: 2}, {Offset: 3, Length: 1}}, PositiveDeltas: []int64{1, 1, 2},
						NegativeSpans: []prompb.BucketSpan{{Offset: 0, Length: 2}}, NegativeDeltas: []int64{2, -2},
						ResetHint: prompb.Histogram_NO, Timestamp: 9,
					},
					{
						Count: &prompb.Histogram_CountFloat{CountFloat: 2.5}, Sum: math.NaN(), Schema: -53,
						PositiveSpans: []prompb.BucketSpan{{Length: 2}}, PositiveCounts: []float64{1, 1.5},
						CustomValues: []float64{0.5, 1}, Timestamp: 10, ResetHint: prompb.Histogram_GAUGE,
					},
				},
			},
		},
		Metadata: []prompb.MetricMetadata{{Type: prompb.MetricMetadata_SUMMARY, MetricFamilyName: "latency", Help: "How long.", Unit: "seconds"}},
	}
}

// Marshal encodes a request of version 1.
func Marshal(t testing.TB, req *prompb.WriteRequest) []byte {
	t.Helper()
	body, err := req.Marshal()
	require.NoError(t, err)
	return body
}

// AsPrompb converts a batch to the type that the oracle decodes to.
func AsPrompb(b *batch.Batch) *prompb.WriteRequest {
	labels := func(from []batch.Label) []prompb.Label {
		var to []prompb.Label
		for _, l := range from {
			to = append(to, prompb.Label{Name: l.Name, Value: l.Value})
		}
		return to
	}
	spans := func(from []batch.BucketSpan) []prompb.BucketSpan {
		var to []prompb.BucketSpan
		for _, s := range from {
			to = append(to, prompb.BucketSpan{Offset: s.Offset, Length: s.Length})
		}
		return to
	}
	req := new(prompb.WriteRequest)
	for _, s := range b.Series {
		ts := prompb.TimeSeries{Labels: labels(b.LabelsOf(&s))}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: v.Timestamp, Value: v.Value})
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			ts.Exemplars = append(ts.Exemplars, prompb.Exemplar{Labels: labels(batch.Slice(b.ExemplarLabels, e.Labels)), Value: e.Value, Timestamp: e.Timestamp})
		}
		for _, h := range batch.Slice(b.Histograms, s.Histograms) {
			k := &b.Buckets
			p := prompb.Histogram{
				Sum: h.Sum, Schema: h.Schema, ZeroThreshold: h.ZeroThreshold, Timestamp: h.Timestamp,
				ResetHint:      prompb.Histogram_ResetHint(h.ResetHint),
				PositiveSpans:  spans(batch.Slice(k.Spans[batch.Positive], h.Spans[batch.Positive])),
				NegativeSpans:  spans(batch.Slice(k.Spans[batch.Negative], h.Spans[batch.Negative])),
				PositiveDeltas: append([]int64(nil), batch.Slice(k.Deltas[batch.Positive], h.Deltas[batch.Positive])...),
				NegativeDeltas: append([]int64(nil), batch.Slice(k.Deltas[batch.Negative], h.Deltas[batch.Negative])...),
				PositiveCounts: append([]float64(nil), batch.Slice(k.Counts[batch.Positive], h.Counts[batch.Positive])...),
				NegativeCounts: append([]float64(nil), batch.Slice(k.Counts[batch.Negative], h.Counts[batch.Negative])...),
				CustomValues:   append([]float64(nil), batch.Slice(k.CustomValues, h.CustomValues)...),
			}
			switch h.CountKind {
			case batch.IntCount:
				p.Count = &prompb.Histogram_CountInt{CountInt: h.Count}
			case batch.FloatCount:
				p.Count = &prompb.Histogram_CountFloat{CountFloat: h.CountFloat}
			}
			switch h.ZeroKind {
			case batch.IntCount:
				p.ZeroCount = &prompb.Histogram_ZeroCountInt{ZeroCountInt: h.ZeroCount}
			case batch.FloatCount:
				p.ZeroCount = &prompb.Histogram_ZeroCountFloat{ZeroCountFloat: h.ZeroFloat}
			}
			ts.Histograms = append(ts.Histograms, p)
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	for _, m := range b.Metadata {
		req.Metadata = append(req.Metadata, prompb.MetricMetadata{Type: prompb.MetricMetadata_MetricType(m.Type), MetricFamilyName: m.Family, Help: m.Help, Unit: m.Unit})
	}
	return req
}

// Known removes the unknown fields that the oracle keeps.
func Known(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			Known(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			Known(v.Index(i))
		}
	case reflect.Struct:
		if rest := v.FieldByName("XXX_unrecognized"); rest.IsValid() {
			rest.SetZero()
		}
		for i := range v.NumField() {
			Known(v.Field(i))
		}
	}
}

// Same compares encodings, so that the bits of NaNs count.
func Same(t testing.TB, want *prompb.WriteRequest, got *batch.Batch) {
	t.Helper()
	Known(reflect.ValueOf(want))
	for i, m := range want.Metadata { // here an unknown type is "unknown"
		if _, known := prompb.MetricMetadata_MetricType_name[int32(m.Type)]; !known {
			want.Metadata[i].Type = 0
		}
	}
	require.Equal(t, Marshal(t, want), Marshal(t, AsPrompb(got)))
}

// Compress compresses a body as senders do.
func Compress(body []byte) io.Reader { return bytes.NewReader(snappy.Encode(nil, body)) }

// OneSeries returns a request with one sample of a series with these labels, given as alternating
// names and values.
func OneSeries(labels ...string) *prompb.WriteRequest {
	ts := prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: 1, Value: 1}}}
	for pair := range slices.Chunk(labels, 2) {
		ts.Labels = append(ts.Labels, prompb.Label{Name: pair[0], Value: pair[1]})
	}
	return &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{ts}}
}

// Alike returns series whose labels compress well, because most are equal in all series.
func Alike(i int) []prompb.Label {
	return labelsFrom("__name__", fmt.Sprintf("http_requests_total_%d", i%50), "cluster", "prod-eu-central-1", "connection", "3",
		"container", "checkout", "endpoint", fmt.Sprintf("/api/v1/orders/%d", i%20), "instance", fmt.Sprintf("10.0.%d.12:9090", i%7),
		"job", "kubernetes-pods", "method", []string{"GET", "POST", "PUT"}[i%3], "pod", fmt.Sprintf("checkout-7d9f8b6c5d-%d", i), "series", fmt.Sprint(i))
}

// Scraped returns series like those of targets with a hundred series each, with unrelated names.
func Scraped(i int) []prompb.Label {
	r := rand.New(rand.NewPCG(1, uint64(i/100)))
	hex := func(n int) (s string) {
		for range n / 16 {
			s += fmt.Sprintf("%016x", r.Uint64())
		}
		return s
	}
	return labelsFrom("__name__", fmt.Sprintf("container_%d_bytes_total", i%100/4), "cluster", "prod-eu-central-1", "container_id", hex(64),
		"device", fmt.Sprintf("dev%d", i%4), "instance", fmt.Sprintf("10.%d.%d.%d:9090", r.IntN(256), r.IntN(256), r.IntN(256)),
		"job", "kubernetes-pods", "namespace", hex(16), "pod", "checkout-"+hex(16), "series", fmt.Sprint(i), "uid", hex(32))
}

func labelsFrom(pairs ...string) (labels []prompb.Label) {
	for pair := range slices.Chunk(pairs, 2) {
		labels = append(labels, prompb.Label{Name: pair[0], Value: pair[1]})
	}
	return labels
}

// Bodies returns the same series in a request of each version.
func Bodies(t testing.TB, series int, labels func(int) []prompb.Label) [2][]byte {
	t.Helper()
	v1, v2, table := new(prompb.WriteRequest), new(writev2.Request), writev2.NewSymbolTable()
	for i := range series {
		one := prompb.TimeSeries{Labels: labels(i), Samples: []prompb.Sample{{Timestamp: 1_700_000_000_000, Value: float64(i) * 1.25}}}
		two := writev2.TimeSeries{Samples: []writev2.Sample{{Timestamp: 1_700_000_000_000, Value: float64(i) * 1.25}}}
		for _, l := range one.Labels {
			two.LabelsRefs = append(two.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		v1.Timeseries, v2.Timeseries = append(v1.Timeseries, one), append(v2.Timeseries, two)
	}
	v2.Symbols = table.Symbols()
	return [2][]byte{Marshal(t, v1), MarshalV2(t, v2)}
}

// StatusOf returns the HTTP status of the answer for an error.
func StatusOf(t *testing.T, err error) int {
	t.Helper()
	refused := (*refusal.Error)(nil)
	require.ErrorAs(t, err, &refused)
	return refused.Status
}
