package nightingale

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// decoded returns a valid batch of a request. Without raw bytes it is what another
// protocol's decoder leaves.
func decoded(t testing.TB, req *prompb.WriteRequest, raw bool) *batch {
	t.Helper()
	b := new(batch)
	require.NoError(t, decodeV1(b, marshal(t, req), testLimits()))
	bad, _ := b.validate(testLimits(), nil)
	require.Empty(t, bad.first)
	if !raw {
		b.body = nil
		for i := range b.series {
			b.series[i].raw = span{}
		}
	}
	return b
}

// encodeAs runs the real encoder.
func encodeAs(b *batch, format string, p packing) []messaging.Record {
	out := outgoing{packing: p}
	findFormat(format).encode(b, &out)
	return out.records
}

// sameSeries compares series by what they marshal to: NaN is not equal to itself.
func sameSeries(t *testing.T, want, got []prompb.TimeSeries) {
	t.Helper()
	text := func(all []prompb.TimeSeries) (lines []string) {
		for _, ts := range all {
			body, err := ts.Marshal()
			require.NoError(t, err)
			lines = append(lines, fmt.Sprintf("%x", body))
		}
		return lines
	}
	assert.Equal(t, text(want), text(got))
}

// TestConsumeProtobuf is how a consumer of the protobuf format reads.
func TestConsumeProtobuf(t *testing.T) {
	for _, raw := range []bool{true, false} {
		var got []prompb.TimeSeries
		for _, message := range encodeAs(decoded(t, everything(), raw), "protobuf", packing{}) {
			var ts prompb.TimeSeries
			require.NoError(t, ts.Unmarshal(message.Payload))
			assert.Len(t, message.Key, 16)
			got = append(got, ts)
		}
		sameSeries(t, everything().Timeseries, got)
	}
}

// TestConsumePacked is how a consumer of the packed format reads.
func TestConsumePacked(t *testing.T) {
	for _, raw := range []bool{true, false} {
		var got prompb.WriteRequest
		for _, message := range encodeAs(decoded(t, everything(), raw), packedFormat, packing{}) {
			var part prompb.WriteRequest
			require.NoError(t, part.Unmarshal(message.Payload))
			got.Timeseries = append(got.Timeseries, part.Timeseries...)
			got.Metadata = append(got.Metadata, part.Metadata...)
			assert.Equal(t, "0", message.Key)
		}
		sameSeries(t, everything().Timeseries, got.Timeseries)
		if raw {
			assert.Equal(t, everything().Metadata, got.Metadata)
		}
	}
}

// TestConsumeAdapter is how consumers of prometheus-kafka-adapter read, and that
// each byte is as the adapter's own encoding/json would have written it.
func TestConsumeAdapter(t *testing.T) {
	req := everything()
	req.Timeseries = append(req.Timeseries, oneSeries("__name__", "a<b>&\"\\\b\f\n\r\t\x01 \u2028\u2029 ü 東京", "zone", "x", "Zone", "y").Timeseries...)
	for i, v := range []float64{0.1, 1e21, -1e-7, math.Inf(1), math.MaxFloat64} { // prompb itself drops the sign of a zero
		req.Timeseries[2].Samples = append(req.Timeseries[2].Samples, prompb.Sample{Timestamp: int64(i)*1_699_999_999_999 - 1500, Value: v})
	}
	messages := encodeAs(decoded(t, req, true), "json-kafka-adapter", packing{})
	n := 0
	for _, ts := range req.Timeseries {
		labels := map[string]string{}
		for _, l := range ts.Labels {
			labels[l.Name] = l.Value
		}
		for _, s := range ts.Samples {
			want, err := json.Marshal(map[string]any{ // as serializers.go of the adapter has it
				"timestamp": time.Unix(s.Timestamp/1000, 0).UTC().Format(time.RFC3339),
				"value":     strconv.FormatFloat(s.Value, 'f', -1, 64),
				"name":      labels["__name__"],
				"labels":    labels,
			})
			require.NoError(t, err)
			require.Greater(t, len(messages), n)
			assert.Equal(t, string(want), string(messages[n].Payload))

			var m struct {
				Timestamp time.Time         `json:"timestamp"`
				Value     float64           `json:"value,string"`
				Name      string            `json:"name"`
				Labels    map[string]string `json:"labels"`
			}
			if !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) {
				require.NoError(t, json.Unmarshal(messages[n].Payload, &m))
				assert.Equal(t, math.Float64bits(s.Value), math.Float64bits(m.Value))
				assert.Equal(t, labels, m.Labels)
			}
			n++
		}
	}
	assert.Len(t, messages, n, "samples only")
}

// TestConsumeJSON is how a consumer of the json format reads.
func TestConsumeJSON(t *testing.T) {
	var values []float64
	for _, message := range encodeAs(decoded(t, everything(), true), "json", packing{}) {
		var m struct {
			Name      string            `json:"name"`
			Labels    map[string]string `json:"labels"`
			Timestamp int64             `json:"timestamp"`
			Value     json.RawMessage   `json:"value"`
			Stale     bool              `json:"stale"`
		}
		require.NoError(t, json.Unmarshal(message.Payload, &m))
		if m.Value == nil {
			continue // a histogram or an exemplar
		}
		v, err := strconv.ParseFloat(string(bytes.Trim(m.Value, `"`)), 64)
		require.NoError(t, err)
		if m.Stale {
			v = math.Float64frombits(0x7ff0000000000002)
		}
		values = append(values, v)
	}
	require.Len(t, values, 3)
	for i, s := range everything().Timeseries[0].Samples {
		assert.Equal(t, math.Float64bits(s.Value), math.Float64bits(values[i]))
	}
}

// TestPackedPlacesSeriesByTheirKey: the partition is that to which the publisher
// routes the key of the other formats, each series is there once, and the order of
// the request is kept.
func TestPackedPlacesSeriesByTheirKey(t *testing.T) {
	const partitions, limit = 5, 4 << 10
	req := request(1000, 10)
	for i := range 1000 { // every series twice
		again := req.Timeseries[i]
		again.Samples = []prompb.Sample{{Timestamp: 1_800_000_000_000, Value: 1}}
		req.Timeseries = append(req.Timeseries, again)
	}
	for _, raw := range []bool{true, false} {
		b := decoded(t, req, raw)
		var want [partitions][]prompb.TimeSeries
		for i, s := range b.series {
			key := string(appendKey(nil, s.key))
			h := uint32(0)
			for j := range len(key) {
				h = 31*h + uint32(key[j])
			}
			require.Equal(t, h, keyHash(s.key))
			want[h%partitions] = append(want[h%partitions], req.Timeseries[i])
		}
		var got [partitions][]prompb.TimeSeries
		messages := encodeAs(b, packedFormat, packing{partitions: partitions, limit: limit})
		for _, m := range messages {
			require.LessOrEqual(t, len(m.Payload), limit)
			assert.Equal(t, strconv.Itoa(m.Partition), m.Key)
			var part prompb.WriteRequest
			require.NoError(t, part.Unmarshal(m.Payload))
			got[m.Partition] = append(got[m.Partition], part.Timeseries...)
		}
		assert.Greater(t, len(messages), partitions)
		for i := range got {
			sameSeries(t, want[i], got[i])
		}
	}
}

// TestCopiedSeriesAreOnesThatStandSo: sorted labels are not what the body holds.
func TestCopiedSeriesAreOnesThatStandSo(t *testing.T) {
	req := oneSeries("zone", "a", "__name__", "up")
	for _, format := range []string{"protobuf", packedFormat} {
		messages := encodeAs(decoded(t, req, true), format, packing{})
		require.Len(t, messages, 1)
		var ts prompb.TimeSeries
		if format == packedFormat {
			var part prompb.WriteRequest
			require.NoError(t, part.Unmarshal(messages[0].Payload))
			ts = part.Timeseries[0]
		} else {
			require.NoError(t, ts.Unmarshal(messages[0].Payload))
		}
		assert.Equal(t, []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "zone", Value: "a"}}, ts.Labels)
	}
}

func TestPackedSendsAlargeSeriesAlone(t *testing.T) {
	req := request(3, 200)
	req.Timeseries[0].Labels = req.Timeseries[0].Labels[:2]
	limits := testLimits()
	limits.LabelsPerSeries = 1000
	b := new(batch)
	require.NoError(t, decodeV1(b, marshal(t, req), limits))
	_, _ = b.validate(limits, nil)
	assert.Len(t, encodeAs(b, packedFormat, packing{limit: 1 << 10}), 3)
}

// FuzzProtobufEncoder: what the oracle decodes is what it decodes of our encoding.
func FuzzProtobufEncoder(f *testing.F) {
	f.Add(marshal(f, everything()))
	f.Add(marshal(f, request(2, 3)))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := new(batch)
		if decodeV1(b, body, testLimits()) != nil {
			return
		}
		all := asPrompb(b)
		for i := range b.series {
			var got prompb.TimeSeries
			s, want := b.series[i], all.Timeseries[i]
			encoded := b.appendSeries(nil, &s)
			require.LessOrEqual(t, len(encoded), b.encodedSize(&series{labels: s.labels, samples: s.samples, exemplars: s.exemplars, histograms: s.histograms}))
			require.NoError(t, got.Unmarshal(encoded))
			wantText, err := want.Marshal()
			require.NoError(t, err)
			gotText, err := got.Marshal()
			require.NoError(t, err)
			require.Equal(t, wantText, gotText)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range formatNames() {
		for _, raw := range []bool{true, false} {
			if !raw && !slices.Contains([]string{"protobuf", packedFormat, packedV2Format}, name) {
				continue
			}
			b.Run(fmt.Sprintf("%s/raw=%t", name, raw), func(b *testing.B) {
				space := decoded(b, request(2000, 10), raw)
				out := outgoing{packing: packing{partitions: 4, limit: 256 << 10}}
				f := findFormat(name)
				b.ReportAllocs()
				for b.Loop() {
					out.reset()
					f.encode(space, &out)
				}
				b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "samples/s")
			})
		}
	}
}

// TestNoAllocationPerSeries: what a request costs does not grow with its series.
func TestNoAllocationPerSeries(t *testing.T) {
	body, limits := marshal(t, request(2000, 10)), testLimits()
	for _, name := range formatNames() {
		space, f := new(batch), findFormat(name)
		usual := form{symbolic: f.symbols, lean: f.symbols, lateKeys: f.byPartition}
		out := outgoing{packing: packing{partitions: 4, limit: 256 << 10}}
		var scratch []byte
		allocations := testing.AllocsPerRun(5, func() {
			space.reset()
			out.reset()
			space.form = usual
			if decodeV1(space, body, limits) != nil {
				panic("decode")
			}
			_, scratch = space.validate(limits, scratch)
			f.encode(space, &out)
		})
		assert.LessOrEqual(t, allocations, 2.0, name)
	}
}

// TestUTF8IsFoundWhereverItStands: the look at the labels as one must not pass over
// any, also where samples stand between them.
func TestUTF8IsFoundWhereverItStands(t *testing.T) {
	for _, bad := range []int{0, 1, 2} {
		var ts []byte
		for i, name := range []string{"__name__", "a", "b"} {
			value := strings.Repeat("x", 40)
			if i == bad {
				value += "\xff"
			}
			var at int
			ts, at = openField(ts, 1)
			ts = appendText(ts, 2, value) // the value first
			ts = appendText(ts, 1, name)
			ts = closeField(ts, at)
			ts, at = openField(ts, 2)
			ts = appendVarint(ts, 2, 5)
			ts = closeField(ts, at)
		}
		body, at := openField(nil, 1)
		body = closeField(append(body, ts...), at)
		b := new(batch)
		require.NoError(t, decodeV1(b, body, testLimits()))
		r, _ := b.validate(testLimits(), nil)
		assert.Equal(t, map[string]int{"invalid_utf8": 3}, r.reasons)
	}
}
