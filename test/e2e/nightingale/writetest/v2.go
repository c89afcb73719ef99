package writetest

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// StaleNaN is Prometheus' stale marker.
func StaleNaN() float64 { return math.Float64frombits(0x7ff0000000000002) }

// RequestV2 returns a typical request: each series has labels labels, one sample and metadata.
func RequestV2(series, labels int) *writev2.Request {
	table := writev2.NewSymbolTable()
	req := new(writev2.Request)
	for i, from := range Request(series, labels).Timeseries {
		ts := writev2.TimeSeries{
			Samples: []writev2.Sample{{Timestamp: 1_700_000_000_000 + int64(i), Value: float64(i) + 0.5}},
			Metadata: writev2.Metadata{
				Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: table.Symbolize("How many requests there were."), UnitRef: table.Symbolize("requests"),
			},
		}
		for _, l := range from.Labels {
			ts.LabelsRefs = append(ts.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	req.Symbols = table.Symbols()
	return req
}

// EverythingV2 returns a request with every field that exists.
func EverythingV2() *writev2.Request {
	return &writev2.Request{
		Symbols: []string{"", "__name__", "latency", "job", "api", "trace_id", "abc", "How long.", "seconds"},
		Timeseries: []writev2.TimeSeries{
			{
				LabelsRefs: []uint32{1, 2, 3, 4},
				Samples:    []writev2.Sample{{Timestamp: 1, Value: 1.5, StartTimestamp: -4}, {Timestamp: 2, Value: StaleNaN()}, {Timestamp: -3, Value: math.Inf(-1)}},
				Exemplars: []writev2.Exemplar{
					{LabelsRefs: []uint32{5, 6}, Value: 0.25, Timestamp: 7},
					{Value: 2, Timestamp: 8},
				},
				Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_SUMMARY, HelpRef: 7, UnitRef: 8},
			},
			{
				LabelsRefs: []uint32{1, 2, 3, 4},
				Histograms: []writev2.Histogram{
					{
						Count: &writev2.Histogram_CountInt{CountInt: 10}, Sum: 12.5, Schema: -2, ZeroThreshold: 1e-128,
						ZeroCount:     &writev2.Histogram_ZeroCountInt{ZeroCountInt: 1},
						PositiveSpans: []writev2.BucketSpan{{Offset: -1, Length: 2}, {Offset: 3, Length: 1}}, PositiveDeltas: []int64{1, 1, 2},
						NegativeSpans: []writev2.BucketSpan{{Offset: 0, Length: 2}}, NegativeDeltas: []int64{2, -2},
						ResetHint: writev2.Histogram_RESET_HINT_NO, Timestamp: 9, StartTimestamp: 5,
					},
					{
						Count: &writev2.Histogram_CountFloat{CountFloat: 2.5}, Sum: math.NaN(), Schema: -53,
						PositiveSpans: []writev2.BucketSpan{{Length: 2}}, PositiveCounts: []float64{1, 1.5},
						CustomValues: []float64{0.5, 1}, Timestamp: 10, ResetHint: writev2.Histogram_RESET_HINT_GAUGE,
					},
				},
			},
		},
	}
}

// MarshalV2 encodes a request of version 2.
func MarshalV2(t testing.TB, req *writev2.Request) []byte {
	t.Helper()
	body, err := req.Marshal()
	require.NoError(t, err)
	return body
}

// Canonical is a request in a canonical form, to compare the results of both decoders: with symbols
// in a fixed order, and only valid references. flaws has the error of each series, and series with
// an error are left out.
type Canonical struct {
	table writev2.SymbolsTable
	Req   writev2.Request
	flaws []batch.SeriesError
}

// Bytes encodes it.
func (c *Canonical) Bytes(t testing.TB) []byte {
	t.Helper()
	c.Req.Symbols = c.table.Symbols()
	return MarshalV2(t, &c.Req)
}

// oracleV2 is a simple decoder that follows the specification, to check the fast one, DecodeV2.
func oracleV2(req *writev2.Request) *Canonical {
	c := &Canonical{table: writev2.NewSymbolTable()}
	for _, ts := range req.Timeseries {
		references := slices.Concat(ts.LabelsRefs, []uint32{ts.Metadata.HelpRef, ts.Metadata.UnitRef})
		odd := len(ts.LabelsRefs)%2 != 0
		for _, e := range ts.Exemplars {
			references = append(references, e.LabelsRefs...)
			odd = odd || len(e.LabelsRefs)%2 != 0
		}
		beyond := slices.ContainsFunc(references, func(ref uint32) bool { return int(ref) >= len(req.Symbols) })
		f := batch.NoError
		switch {
		case beyond:
			f = batch.ReferenceOutOfBounds
		case odd:
			f = batch.OddReferences
		case len(ts.Samples) > 0 && len(ts.Histograms) > 0:
			f = batch.SamplesAndHistograms
		case len(ts.Samples) == 0 && len(ts.Histograms) == 0:
			f = batch.NoSamples
		}
		c.flaws = append(c.flaws, f)
		if f != batch.NoError {
			continue
		}
		again := func(refs []uint32) (out []uint32) {
			for _, ref := range refs {
				out = append(out, c.table.Symbolize(req.Symbols[ref]))
			}
			return out
		}
		one := writev2.TimeSeries{LabelsRefs: again(ts.LabelsRefs), Samples: slices.Clone(ts.Samples), Histograms: slices.Clone(ts.Histograms)}
		for _, e := range ts.Exemplars {
			e.LabelsRefs = again(e.LabelsRefs)
			one.Exemplars = append(one.Exemplars, e)
		}
		help, unit := req.Symbols[ts.Metadata.HelpRef], req.Symbols[ts.Metadata.UnitRef]
		if utf8.ValidString(truncate.Prefix(help, batch.MaxFamilyHelp)) && utf8.ValidString(truncate.Prefix(unit, batch.MaxFamilyUnit)) {
			one.Metadata = c.metadata(int32(ts.Metadata.Type), truncate.Text(help, batch.MaxFamilyHelp), truncate.Text(unit, batch.MaxFamilyUnit))
		} else {
			one.Metadata = c.metadata(0, "not UTF-8", "")
		}
		// Release candidate 3 has the start in a field that was removed later.
		if start := fieldSix(ts.XXX_unrecognized); start != 0 {
			for i := range one.Samples {
				if one.Samples[i].StartTimestamp == 0 {
					one.Samples[i].StartTimestamp = start
				}
			}
			for i := range one.Histograms {
				if one.Histograms[i].StartTimestamp == 0 {
					one.Histograms[i].StartTimestamp = start
				}
			}
		}
		c.Req.Timeseries = append(c.Req.Timeseries, one)
	}
	return c
}

func (c *Canonical) metadata(kind int32, help, unit string) writev2.Metadata {
	if kind < 0 || kind > 7 {
		kind = 0
	}
	return writev2.Metadata{Type: writev2.Metadata_MetricType(kind), HelpRef: c.table.Symbolize(help), UnitRef: c.table.Symbolize(unit)}
}

func fieldSix(rest []byte) (start int64) {
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		if number == 6 && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(rest[n:])
			start = int64(v)
		}
		rest = rest[n+protowire.ConsumeFieldValue(number, kind, rest[n:]):]
	}
	return start
}

// DecodedV2 converts a batch to a canonical request.
func DecodedV2(t testing.TB, b *batch.Batch) *Canonical {
	t.Helper()
	c := &Canonical{table: writev2.NewSymbolTable()}
	refs := func(labels []batch.Label) (out []uint32) {
		for _, l := range labels {
			out = append(out, c.table.Symbolize(l.Name), c.table.Symbolize(l.Value))
		}
		return out
	}
	asV1 := AsPrompb(b) // histograms have the same encoding in both versions
	for i, s := range b.Series {
		c.flaws = append(c.flaws, s.Err)
		if s.Err != batch.NoError {
			continue
		}
		one := writev2.TimeSeries{LabelsRefs: refs(b.LabelsOf(&s))}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			one.Samples = append(one.Samples, writev2.Sample{Timestamp: v.Timestamp, Value: v.Value, StartTimestamp: v.Start})
		}
		for j, h := range batch.Slice(b.Histograms, s.Histograms) {
			var to writev2.Histogram
			body, err := asV1.Timeseries[i].Histograms[j].Marshal()
			require.NoError(t, err)
			require.NoError(t, to.Unmarshal(body))
			to.StartTimestamp = h.Start
			one.Histograms = append(one.Histograms, to)
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			one.Exemplars = append(one.Exemplars, writev2.Exemplar{LabelsRefs: refs(batch.Slice(b.ExemplarLabels, e.Labels)), Value: e.Value, Timestamp: e.Timestamp})
		}
		switch {
		case s.Metadata == nil:
			one.Metadata = c.metadata(0, "", "")
		case s.Metadata.Invalid:
			one.Metadata = c.metadata(0, "not UTF-8", "")
		default:
			one.Metadata = c.metadata(int32(s.Metadata.Type), s.Metadata.Help, s.Metadata.Unit)
		}
		c.Req.Timeseries = append(c.Req.Timeseries, one)
	}
	return c
}

// SameV2 compares the results of DecodeV2 and of the oracle.
func SameV2(t testing.TB, want *writev2.Request, got *batch.Batch) {
	t.Helper()
	a, b := oracleV2(want), DecodedV2(t, got)
	require.Equal(t, a.flaws, b.flaws)
	Known(reflect.ValueOf(&a.Req))
	require.Equal(t, a.Bytes(t), b.Bytes(t))
}

// FlawedV2 returns a request with every error, each in its own series, and valid series between
// them.
func FlawedV2() *writev2.Request {
	sample := []writev2.Sample{{Timestamp: 1, Value: 1}}
	histogram := EverythingV2().Timeseries[1].Histograms[:1]
	good := writev2.TimeSeries{LabelsRefs: []uint32{1, 2}, Samples: sample}
	return &writev2.Request{
		Symbols: []string{"", "__name__", "m"},
		Timeseries: []writev2.TimeSeries{
			good,
			{LabelsRefs: []uint32{1, 3}, Samples: sample},
			{LabelsRefs: []uint32{1, math.MaxUint32}, Samples: sample},
			{LabelsRefs: []uint32{1, 2, 1}, Samples: sample},
			good,
			{LabelsRefs: []uint32{1, 2}},
			{LabelsRefs: []uint32{1, 2}, Exemplars: []writev2.Exemplar{{Value: 1, Timestamp: 1}}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Histograms: histogram},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{7, 2}}}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Exemplars: []writev2.Exemplar{{LabelsRefs: []uint32{1}}}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Metadata: writev2.Metadata{Type: 1, HelpRef: 3}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Metadata: writev2.Metadata{Type: 1, HelpRef: 3}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Metadata: writev2.Metadata{Type: 1, HelpRef: 2}},
			{LabelsRefs: []uint32{1, 3}, Samples: sample, Metadata: writev2.Metadata{Type: 1, HelpRef: 2}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Metadata: writev2.Metadata{Type: 1, HelpRef: 2}},
			{LabelsRefs: []uint32{1, 2}, Samples: sample, Metadata: writev2.Metadata{UnitRef: 3}},
			good,
		},
	}
}

// V2Of returns a request with one sample with these labels.
func V2Of(labels ...string) *writev2.Request {
	table := writev2.NewSymbolTable()
	ts := writev2.TimeSeries{Samples: []writev2.Sample{{Timestamp: 1, Value: 1}}}
	for _, l := range labels {
		ts.LabelsRefs = append(ts.LabelsRefs, table.Symbolize(l))
	}
	return &writev2.Request{Symbols: table.Symbols(), Timeseries: []writev2.TimeSeries{ts}}
}

// ReadPacked is a consumer of packed that uses Prometheus' own types. It prints series in
// Prometheus' text format, and their entries in Go's format.
func ReadPacked(payload []byte) (lines []string, err error) {
	var req writev2.Request
	if err := req.Unmarshal(payload); err != nil {
		return nil, err
	}
	labels := func(refs []uint32) string {
		var pairs []string
		for i := 0; i < len(refs); i += 2 {
			pairs = append(pairs, fmt.Sprintf("%s=%q", req.Symbols[refs[i]], req.Symbols[refs[i+1]]))
		}
		return "{" + strings.Join(pairs, ",") + "}"
	}
	for _, ts := range req.Timeseries {
		series := labels(ts.LabelsRefs)
		about := fmt.Sprintf(" (%d %q %q)", ts.Metadata.Type, req.Symbols[ts.Metadata.UnitRef], req.Symbols[ts.Metadata.HelpRef])
		for _, s := range ts.Samples {
			lines = append(lines, fmt.Sprint(series, about, " ", s.Timestamp, " since ", s.StartTimestamp, ": ", s.Value))
		}
		for _, h := range ts.Histograms {
			lines = append(lines, fmt.Sprint(series, about, " ", h.Timestamp, " since ", h.StartTimestamp, ": sum ", h.Sum, ", deltas ", h.PositiveDeltas, h.NegativeDeltas))
		}
		for _, e := range ts.Exemplars {
			lines = append(lines, fmt.Sprint(series, " ", e.Timestamp, ": exemplar ", labels(e.LabelsRefs), " ", e.Value))
		}
	}
	return lines, nil
}
