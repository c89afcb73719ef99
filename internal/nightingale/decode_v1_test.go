package nightingale

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testLimits() Limits { return DefaultConfig().Limits }

// request makes a usual request: series of labels labels and one sample each.
func request(series, labels int) *prompb.WriteRequest {
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

// everything is a request with each field that there is.
func everything() *prompb.WriteRequest {
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

func marshal(t testing.TB, req *prompb.WriteRequest) []byte {
	t.Helper()
	body, err := req.Marshal()
	require.NoError(t, err)
	return body
}

// asPrompb turns a batch into what the oracle decodes to.
func asPrompb(b *batch) *prompb.WriteRequest {
	labels := func(from []label) []prompb.Label {
		var to []prompb.Label
		for _, l := range from {
			to = append(to, prompb.Label{Name: l.name, Value: l.value})
		}
		return to
	}
	spans := func(from []bucketSpan) []prompb.BucketSpan {
		var to []prompb.BucketSpan
		for _, s := range from {
			to = append(to, prompb.BucketSpan{Offset: s.offset, Length: s.length})
		}
		return to
	}
	req := new(prompb.WriteRequest)
	for _, s := range b.series {
		ts := prompb.TimeSeries{Labels: labels(b.labelsOf(&s))}
		for _, v := range of(b.samples, s.samples) {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: v.timestamp, Value: v.value})
		}
		for _, e := range of(b.exemplars, s.exemplars) {
			ts.Exemplars = append(ts.Exemplars, prompb.Exemplar{Labels: labels(of(b.marks, e.labels)), Value: e.value, Timestamp: e.timestamp})
		}
		for _, h := range of(b.histograms, s.histograms) {
			k := &b.buckets
			p := prompb.Histogram{
				Sum: h.sum, Schema: h.schema, ZeroThreshold: h.zeroThreshold, Timestamp: h.timestamp,
				ResetHint:      prompb.Histogram_ResetHint(h.resetHint),
				PositiveSpans:  spans(of(k.positiveSpans, h.positiveSpans)),
				NegativeSpans:  spans(of(k.negativeSpans, h.negativeSpans)),
				PositiveDeltas: append([]int64(nil), of(k.positiveDeltas, h.positiveDeltas)...),
				NegativeDeltas: append([]int64(nil), of(k.negativeDeltas, h.negativeDeltas)...),
				PositiveCounts: append([]float64(nil), of(k.positiveCounts, h.positiveCounts)...),
				NegativeCounts: append([]float64(nil), of(k.negativeCounts, h.negativeCounts)...),
				CustomValues:   append([]float64(nil), of(k.customValues, h.customValues)...),
			}
			switch h.countKind {
			case intCount:
				p.Count = &prompb.Histogram_CountInt{CountInt: h.count}
			case floatCount:
				p.Count = &prompb.Histogram_CountFloat{CountFloat: h.countFloat}
			}
			switch h.zeroKind {
			case intCount:
				p.ZeroCount = &prompb.Histogram_ZeroCountInt{ZeroCountInt: h.zeroCount}
			case floatCount:
				p.ZeroCount = &prompb.Histogram_ZeroCountFloat{ZeroCountFloat: h.zeroFloat}
			}
			ts.Histograms = append(ts.Histograms, p)
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	for _, m := range b.metadata {
		kind := prompb.MetricMetadata_MetricType(0)
		for k := range prompb.MetricMetadata_MetricType_name {
			if kindName(k) == m.kind {
				kind = prompb.MetricMetadata_MetricType(k)
			}
		}
		req.Metadata = append(req.Metadata, prompb.MetricMetadata{Type: kind, MetricFamilyName: m.family, Help: m.help, Unit: m.unit})
	}
	return req
}

// known removes what the oracle keeps of fields it does not know.
func known(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			known(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			known(v.Index(i))
		}
	case reflect.Struct:
		if rest := v.FieldByName("XXX_unrecognized"); rest.IsValid() {
			rest.SetZero()
		}
		for i := range v.NumField() {
			known(v.Field(i))
		}
	}
}

// same compares by encoding, which keeps the bits of NaNs.
func same(t testing.TB, want *prompb.WriteRequest, got *batch) {
	t.Helper()
	known(reflect.ValueOf(want))
	for i, m := range want.Metadata { // a type that is not known is "unknown" here
		if _, known := prompb.MetricMetadata_MetricType_name[int32(m.Type)]; !known {
			want.Metadata[i].Type = 0
		}
	}
	require.Equal(t, marshal(t, want), marshal(t, asPrompb(got)))
}

func TestDecodeV1AgreesWithPrompb(t *testing.T) {
	b := new(batch)
	for name, req := range map[string]*prompb.WriteRequest{
		"empty": {}, "usual": request(200, 10), "everything": everything(),
		"long labels": {Timeseries: []prompb.TimeSeries{{Labels: []prompb.Label{
			{Name: "__name__", Value: string(make([]byte, 127))}, {Name: string(make([]byte, 200)), Value: string(make([]byte, 128))}, {Name: "empty"}, {},
		}}}},
	} {
		t.Run(name, func(t *testing.T) {
			b.reset()
			require.NoError(t, decodeV1(b, marshal(t, req), testLimits()))
			same(t, req, b)
		})
	}
}

func TestDecodeV1DoesNotAllocate(t *testing.T) {
	for name, req := range map[string]*prompb.WriteRequest{"usual": request(2000, 10), "everything": everything()} {
		t.Run(name, func(t *testing.T) {
			body := marshal(t, req)
			b, limits := new(batch), testLimits()
			scratch := make([]byte, 0, 4096)
			allocations := testing.AllocsPerRun(20, func() {
				b.reset()
				if err := decodeV1(b, body, limits); err != nil {
					t.Fatal(err)
				}
				_, scratch = b.validate(limits, scratch)
			})
			assert.Zero(t, allocations)
		})
	}
}

// FuzzDecodeV1 checks that nothing crashes, that what is accepted is what the
// oracle makes of it, and that what the oracle makes of anything is accepted in its
// own encoding. (The oracle takes groups and overlong varints, which no sender
// writes and which are refused here.)
func FuzzDecodeV1(f *testing.F) {
	f.Add([]byte{})
	f.Add(marshal(f, request(2, 3)))
	f.Add(marshal(f, everything()))
	f.Add([]byte("\n\x00\x000")) // field number 0
	f.Fuzz(func(t *testing.T, body []byte) {
		limits := testLimits()
		b, want := new(batch), new(prompb.WriteRequest)
		err, oracle := decodeV1(b, body, limits), want.Unmarshal(body)
		if err == nil {
			require.NoError(t, oracle, "accepted what prompb refuses")
			same(t, want, b)
			bad, _ := b.validate(limits, nil)
			_ = bad.err(len(want.Timeseries))
			var out outgoing
			encodeJSON(b, &out)
			for _, r := range out.records {
				require.True(t, json.Valid(r.Payload), "%s", r.Payload)
			}
		}
		if oracle == nil {
			known(reflect.ValueOf(want))
			b.reset()
			require.NoError(t, decodeV1(b, marshal(t, want), limits))
			same(t, want, b)
		}
	})
}

func BenchmarkDecodeV1(b *testing.B) {
	body := marshal(b, request(2000, 10))
	limits, space := testLimits(), new(batch)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		space.reset()
		if err := decodeV1(space, body, limits); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "series/s")
}
