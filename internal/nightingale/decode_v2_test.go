package nightingale

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/door"
)

var staleNaN = math.Float64frombits(0x7ff0000000000002)

// requestV2 makes a usual request: series of labels labels, one sample each, with
// metadata.
func requestV2(series, labels int) *writev2.Request {
	table := writev2.NewSymbolTable()
	req := new(writev2.Request)
	for i, from := range request(series, labels).Timeseries {
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

// everythingV2 is a request with each field that there is.
func everythingV2() *writev2.Request {
	return &writev2.Request{
		Symbols: []string{"", "__name__", "latency", "job", "api", "trace_id", "abc", "How long.", "seconds"},
		Timeseries: []writev2.TimeSeries{
			{
				LabelsRefs: []uint32{1, 2, 3, 4},
				Samples:    []writev2.Sample{{Timestamp: 1, Value: 1.5, StartTimestamp: -4}, {Timestamp: 2, Value: staleNaN}, {Timestamp: -3, Value: math.Inf(-1)}},
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

func marshalV2(t testing.TB, req *writev2.Request) []byte {
	t.Helper()
	body, err := req.Marshal()
	require.NoError(t, err)
	return body
}

// canonical is a request with symbols in one order and references that exist;
// what either decoder makes of a body is turned into one. flaws has one for each series,
// and those that have one are left out.
type canonical struct {
	table writev2.SymbolsTable
	req   writev2.Request
	flaws []flaw
}

func (c *canonical) bytes(t testing.TB) []byte {
	t.Helper()
	c.req.Symbols = c.table.Symbols()
	return marshalV2(t, &c.req)
}

// oracleV2 does by the book what decodeV2 does fast.
func oracleV2(req *writev2.Request) *canonical {
	c := &canonical{table: writev2.NewSymbolTable()}
	for _, ts := range req.Timeseries {
		references := slices.Concat(ts.LabelsRefs, []uint32{ts.Metadata.HelpRef, ts.Metadata.UnitRef})
		odd := len(ts.LabelsRefs)%2 != 0
		for _, e := range ts.Exemplars {
			references = append(references, e.LabelsRefs...)
			odd = odd || len(e.LabelsRefs)%2 != 0
		}
		beyond := slices.ContainsFunc(references, func(ref uint32) bool { return int(ref) >= len(req.Symbols) })
		f := flawless
		switch {
		case beyond:
			f = flawReference
		case odd:
			f = flawOddReferences
		case len(ts.Samples) > 0 && len(ts.Histograms) > 0:
			f = flawBoth
		case len(ts.Samples) == 0 && len(ts.Histograms) == 0:
			f = flawNeither
		}
		c.flaws = append(c.flaws, f)
		if f != flawless {
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
		one.Metadata = c.about(int32(ts.Metadata.Type), door.Cut(req.Symbols[ts.Metadata.HelpRef], maxFamilyHelp), door.Cut(req.Symbols[ts.Metadata.UnitRef], maxFamilyUnit))
		// Release candidate 3 has the start in a field that is gone since.
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
		c.req.Timeseries = append(c.req.Timeseries, one)
	}
	return c
}

func (c *canonical) about(kind int32, help, unit string) writev2.Metadata {
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

// decodedV2 turns a batch into a canonical request.
func decodedV2(t testing.TB, b *batch) *canonical {
	t.Helper()
	c := &canonical{table: writev2.NewSymbolTable()}
	refs := func(labels []label) (out []uint32) {
		for _, l := range labels {
			out = append(out, c.table.Symbolize(l.name), c.table.Symbolize(l.value))
		}
		return out
	}
	asV1 := asPrompb(b) // whose histograms are encoded alike
	for i, s := range b.series {
		c.flaws = append(c.flaws, s.flaw)
		if s.flaw != flawless {
			continue
		}
		one := writev2.TimeSeries{LabelsRefs: refs(b.labelsOf(&s))}
		for _, v := range of(b.samples, s.samples) {
			one.Samples = append(one.Samples, writev2.Sample{Timestamp: v.timestamp, Value: v.value, StartTimestamp: v.start})
		}
		for j, h := range of(b.histograms, s.histograms) {
			var to writev2.Histogram
			body, err := asV1.Timeseries[i].Histograms[j].Marshal()
			require.NoError(t, err)
			require.NoError(t, to.Unmarshal(body))
			to.StartTimestamp = h.start
			one.Histograms = append(one.Histograms, to)
		}
		for _, e := range of(b.exemplars, s.exemplars) {
			one.Exemplars = append(one.Exemplars, writev2.Exemplar{LabelsRefs: refs(of(b.marks, e.labels)), Value: e.value, Timestamp: e.timestamp})
		}
		if s.about == nil {
			one.Metadata = c.about(0, "", "")
		} else {
			kind := int32(0)
			for kindName(kind) != s.about.kind && kind < 7 {
				kind++
			}
			if s.about.kind == kindUnknown {
				kind = 0
			}
			one.Metadata = c.about(kind, s.about.help, s.about.unit)
		}
		c.req.Timeseries = append(c.req.Timeseries, one)
	}
	return c
}

// sameV2 compares what decodeV2 has made of a body with what the oracle has.
func sameV2(t testing.TB, want *writev2.Request, got *batch) {
	t.Helper()
	a, b := oracleV2(want), decodedV2(t, got)
	require.Equal(t, a.flaws, b.flaws)
	known(reflect.ValueOf(&a.req))
	require.Equal(t, a.bytes(t), b.bytes(t))
}

func TestDecodeV2AgreesWithPrometheus(t *testing.T) {
	b := new(batch)
	for name, req := range map[string]*writev2.Request{
		"empty": {}, "symbols only": {Symbols: []string{""}}, "usual": requestV2(200, 10), "everything": everythingV2(), "flawed": flawedV2(),
		"many symbols": requestV2(3000, 12), // references of three bytes
	} {
		t.Run(name, func(t *testing.T) {
			b.reset()
			require.NoError(t, decodeV2(b, marshalV2(t, req), testLimits()))
			sameV2(t, req, b)
		})
	}
}

// flawedV2 has every flaw, each in a series of its own, and series without between.
func flawedV2() *writev2.Request {
	sample := []writev2.Sample{{Timestamp: 1, Value: 1}}
	histogram := everythingV2().Timeseries[1].Histograms[:1]
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

// TestDecodeV2TakesAnyEncoding: protobuf lets fields come in any order and repeated
// numbers unpacked, in pieces, and a message in pieces.
func TestDecodeV2TakesAnyEncoding(t *testing.T) {
	sample, err := (&writev2.Sample{Timestamp: 1, Value: 2}).Marshal()
	require.NoError(t, err)
	field := func(dst []byte, number protowire.Number, data []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), data)
	}
	single := func(dst []byte, number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), v)
	}
	ts := field(nil, 1, []byte{1, 2, 3}) // a name without its value
	ts = field(ts, 5, single(nil, 1, 1))
	ts = field(ts, 2, sample)
	ts = field(ts, 4, field(nil, 1, []byte{5, 6}))
	ts = single(ts, 1, 4) // here it is
	ts = field(ts, 5, single(nil, 4, 7))
	ts = single(ts, 6, 99) // release candidate 3
	ts = field(ts, 77, []byte("unknown"))
	body := field(nil, 5, ts)
	for _, s := range []string{"", "__name__", "m", "job", "api", "trace_id", "abc", "seconds"} {
		body = field(body, 4, []byte(s))
	}
	b := new(batch)
	require.NoError(t, decodeV2(b, body, testLimits()))
	want := new(writev2.Request)
	require.NoError(t, want.Unmarshal(body))
	sameV2(t, want, b)
	assert.Equal(t, []string{
		`{"name":"m","labels":{"job":"api"},"type":"counter","unit":"seconds","timestamp":1,"start_timestamp":99,"value":2}`,
		`{"name":"m","labels":{"job":"api"},"type":"counter","unit":"seconds","timestamp":0,"exemplar":{"labels":{"trace_id":"abc"},"value":0}}`,
	}, encoded(t, b))
}

// TestDecodeV2Messages is the reference of what version 2 adds to the messages.
func TestDecodeV2Messages(t *testing.T) {
	b := new(batch)
	require.NoError(t, decodeV2(b, marshalV2(t, everythingV2()), testLimits()))
	const labels, about = `{"name":"latency","labels":{"job":"api"},`, `"type":"summary","unit":"seconds","help":"How long.",`
	assert.Equal(t, []string{
		labels + about + `"timestamp":1,"start_timestamp":-4,"value":1.5}`,
		labels + about + `"timestamp":2,"value":"NaN","stale":true}`,
		labels + about + `"timestamp":-3,"value":"-Inf"}`,
		labels + about + `"timestamp":7,"exemplar":{"labels":{"trace_id":"abc"},"value":0.25}}`,
		labels + about + `"timestamp":8,"exemplar":{"labels":{},"value":2}}`,
		labels + `"timestamp":9,"start_timestamp":5,"histogram":{"count":10,"sum":12.5,"schema":-2,"zero_threshold":1e-128,"zero_count":1,` +
			`"positive_spans":[[-1,2],[3,1]],"negative_spans":[[0,2]],"positive_deltas":[1,1,2],"negative_deltas":[2,-2],"reset_hint":"no"}}`,
		labels + `"timestamp":10,"histogram":{"count":2.5,"sum":"NaN","schema":-53,"zero_threshold":0,"zero_count":0,` +
			`"positive_spans":[[0,2]],"positive_counts":[1,1.5],"custom_values":[0.5,1],"reset_hint":"gauge"}}`,
	}, encoded(t, b))
}

// TestDecodeV2BoundsExpansion: a small body must not stand for gigabytes.
func TestDecodeV2BoundsExpansion(t *testing.T) {
	limits := testLimits()
	limits.DecodedBytes = 1 << 20
	large := string(make([]byte, 64<<10))
	for name, req := range map[string]*writev2.Request{
		"large symbols":   {Symbols: []string{"", "a", large}, Timeseries: slices.Repeat([]writev2.TimeSeries{{LabelsRefs: []uint32{1, 2}}}, 20)},
		"many labels":     {Symbols: []string{""}, Timeseries: []writev2.TimeSeries{{LabelsRefs: make([]uint32, 400_000)}}},
		"many symbols":    {Symbols: make([]string, 70_000)},
		"exemplar labels": {Symbols: []string{"", large}, Timeseries: []writev2.TimeSeries{{Exemplars: slices.Repeat([]writev2.Exemplar{{LabelsRefs: []uint32{1, 1}}}, 10)}}},
	} {
		t.Run(name, func(t *testing.T) {
			body := marshalV2(t, req)
			require.Less(t, len(body), 500<<10)
			err := decodeV2(new(batch), body, limits)
			refused := (*door.Refusal)(nil)
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, 413, refused.Status)
			assert.Contains(t, refused.Text, "1048576")
		})
	}
	b := new(batch)
	require.NoError(t, decodeV2(b, marshalV2(t, requestV2(2000, 10)), limits))
	v1 := len(marshal(t, request(2000, 10)))
	assert.Greater(t, b.expanded, v1)
	assert.Less(t, b.expanded, 2*v1, "what the same takes in version 1 is about the measure")
}

func TestDecodeV2DoesNotAllocate(t *testing.T) {
	for name, req := range map[string]*writev2.Request{"usual": requestV2(2000, 10), "everything": everythingV2()} {
		t.Run(name, func(t *testing.T) {
			body := marshalV2(t, req)
			b, limits := new(batch), testLimits()
			scratch := make([]byte, 0, 4096)
			allocations := testing.AllocsPerRun(20, func() {
				b.reset()
				if err := decodeV2(b, body, limits); err != nil {
					t.Fatal(err)
				}
				_, scratch = b.validate(limits, scratch)
			})
			assert.Zero(t, allocations)
		})
	}
}

// FuzzDecodeV2 checks what FuzzDecodeV1 does, with version 2's own oracle.
func FuzzDecodeV2(f *testing.F) {
	f.Add([]byte{})
	f.Add(marshalV2(f, requestV2(2, 3)))
	f.Add(marshalV2(f, everythingV2()))
	f.Add(marshalV2(f, flawedV2()))
	f.Add(marshal(f, &prompb.WriteRequest{Timeseries: request(2, 3).Timeseries}))                                              // version 1
	f.Add([]byte("\"\x00\"\x01a*\x02\b\x01*\x040\x050\x06"))                                                                   // unpacked, field 6
	f.Add(append(marshalV2(f, &writev2.Request{Symbols: []string{""}}), 0x2a, 7, 0x0a, 5, 0x80, 0x80, 0x80, 0x80, 0x10))       // beyond 32 bits
	f.Add(binary.AppendUvarint([]byte{4<<3 | 2}, math.MaxUint64))                                                              // a length beyond everything
	f.Add(append(marshalV2(f, &writev2.Request{Symbols: []string{"", "é\xff"}}), marshalV2(f, requestV2(1, 2))...))            // two in one
	f.Add(marshalV2(f, &writev2.Request{Symbols: []string{"x"}, Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{0}}}})) // first symbol
	f.Fuzz(func(t *testing.T, body []byte) {
		limits := testLimits()
		b, want := new(batch), new(writev2.Request)
		err, oracle := decodeV2(b, body, limits), want.Unmarshal(body)
		if err == nil {
			require.NoError(t, oracle, "accepted what Prometheus' decoder refuses")
			sameV2(t, want, b)
			bad, _ := b.validate(limits, nil)
			_ = bad.err(len(want.Timeseries))
			var out outgoing
			encodeJSON(b, &out)
			for _, r := range out.records {
				require.True(t, json.Valid(r.Payload), "%s", r.Payload)
			}
		}
		if oracle == nil && (len(want.Timeseries) == 0 || len(want.Symbols) > 0 && want.Symbols[0] == "") {
			known(reflect.ValueOf(want))
			b.reset()
			require.NoError(t, decodeV2(b, marshalV2(t, want), limits))
			sameV2(t, want, b)
		}
	})
}

func BenchmarkDecodeV2(b *testing.B) {
	body := marshalV2(b, requestV2(2000, 10))
	limits, space := testLimits(), new(batch)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		space.reset()
		if err := decodeV2(space, body, limits); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "series/s")
}
