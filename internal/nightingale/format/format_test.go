package format

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

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// decoded returns a valid batch of a request. Without raw bytes it is what another
// protocol's decoder leaves.
func decoded(t testing.TB, req *prompb.WriteRequest, raw bool) *batch.Batch {
	t.Helper()
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV1(b, writetest.Marshal(t, req), remotewrite.DefaultLimits()))
	bad, _ := remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
	require.Empty(t, bad.First)
	if !raw {
		b.Body = nil
		for i := range b.Series {
			b.Series[i].Raw = batch.Span{}
		}
	}
	return b
}

// encodeAs runs the real encoder.
func encodeAs(b *batch.Batch, format string, p Packing) []messaging.Record {
	var out Messages
	Find(format).Encode(b, &p, &out)
	return out.Records
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
		for _, message := range encodeAs(decoded(t, writetest.Everything(), raw), "protobuf", Packing{}) {
			var ts prompb.TimeSeries
			require.NoError(t, ts.Unmarshal(message.Payload))
			assert.Len(t, message.Key, 16)
			got = append(got, ts)
		}
		sameSeries(t, writetest.Everything().Timeseries, got)
	}
}

// TestConsumeAdapter is how consumers of prometheus-kafka-adapter read, and that
// each byte is as the adapter's own encoding/json would have written it.
func TestConsumeAdapter(t *testing.T) {
	req := writetest.Everything()
	req.Timeseries = append(req.Timeseries, writetest.OneSeries("__name__", "a<b>&\"\\\b\f\n\r\t\x01 \u2028\u2029 ü 東京", "zone", "x", "Zone", "y").Timeseries...)
	for i, v := range []float64{0.1, 1e21, -1e-7, math.Inf(1), math.MaxFloat64} { // prompb itself drops the sign of a zero
		req.Timeseries[2].Samples = append(req.Timeseries[2].Samples, prompb.Sample{Timestamp: int64(i)*1_699_999_999_999 - 1500, Value: v})
	}
	messages := encodeAs(decoded(t, req, true), "json-kafka-adapter", Packing{})
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
	for _, message := range encodeAs(decoded(t, writetest.Everything(), true), "json", Packing{}) {
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
	for i, s := range writetest.Everything().Timeseries[0].Samples {
		assert.Equal(t, math.Float64bits(s.Value), math.Float64bits(values[i]))
	}
}

func TestPackedSendsAlargeSeriesAlone(t *testing.T) {
	req := writetest.Request(3, 200)
	req.Timeseries[0].Labels = req.Timeseries[0].Labels[:2]
	limits := remotewrite.DefaultLimits()
	limits.LabelsPerSeries = 1000
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV1(b, writetest.Marshal(t, req), limits))
	_, _ = remotewrite.Validate(b, limits, nil)
	assert.Len(t, encodeAs(b, "packed", Packing{Limit: 1 << 10}), 3)
}

// FuzzProtobufEncoder: what the oracle decodes is what it decodes of our encoding.
func FuzzProtobufEncoder(f *testing.F) {
	f.Add(writetest.Marshal(f, writetest.Everything()))
	f.Add(writetest.Marshal(f, writetest.Request(2, 3)))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := new(batch.Batch)
		if remotewrite.DecodeV1(b, body, remotewrite.DefaultLimits()) != nil {
			return
		}
		all := writetest.AsPrompb(b)
		for i := range b.Series {
			var got prompb.TimeSeries
			s, want := b.Series[i], all.Timeseries[i]
			encoded := b.AppendSeries(nil, &s)
			require.LessOrEqual(t, len(encoded), b.EncodedSize(&batch.Series{Labels: s.Labels, Samples: s.Samples, Exemplars: s.Exemplars, Histograms: s.Histograms}))
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
	for _, name := range Names() {
		for _, raw := range []bool{true, false} {
			if !raw && !slices.Contains([]string{"protobuf", "packed"}, name) {
				continue
			}
			b.Run(fmt.Sprintf("%s/raw=%t", name, raw), func(b *testing.B) {
				space := decoded(b, writetest.Request(2000, 10), raw)
				out, p := Messages{}, Packing{Partitions: 4, Limit: 256 << 10}
				f := Find(name)
				b.ReportAllocs()
				for b.Loop() {
					out.Reset()
					f.Encode(space, &p, &out)
				}
				b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "samples/s")
			})
		}
	}
}

// TestNoAllocationPerSeries: what a request costs does not grow with its series.
func TestNoAllocationPerSeries(t *testing.T) {
	body, limits := writetest.Marshal(t, writetest.Request(2000, 10)), remotewrite.DefaultLimits()
	for _, name := range Names() {
		space, f := new(batch.Batch), Find(name)
		out, p := Messages{}, Packing{Partitions: 4, Limit: 256 << 10}
		var scratch []byte
		allocations := testing.AllocsPerRun(5, func() {
			space.Reset()
			p.Reset()
			out.Reset()
			space.References = f.ByPartition
			if remotewrite.DecodeV1(space, body, limits) != nil {
				panic("decode")
			}
			_, scratch = remotewrite.Validate(space, limits, scratch)
			f.Encode(space, &p, &out)
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
			ts, at = batch.OpenField(ts, 1)
			ts = batch.AppendText(ts, 2, value) // the value first
			ts = batch.AppendText(ts, 1, name)
			ts = batch.CloseField(ts, at)
			ts, at = batch.OpenField(ts, 2)
			ts = batch.AppendVarint(ts, 2, 5)
			ts = batch.CloseField(ts, at)
		}
		body, at := batch.OpenField(nil, 1)
		body = batch.CloseField(append(body, ts...), at)
		b := new(batch.Batch)
		require.NoError(t, remotewrite.DecodeV1(b, body, remotewrite.DefaultLimits()))
		r, _ := remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
		assert.Equal(t, map[string]int{"invalid_utf8": 3}, r.Reasons)
	}
}

func TestEventTimes(t *testing.T) {
	assert.True(t, eventTime(-5).IsZero(), "before 1970 there is none")
	assert.Equal(t, time.UnixMilli(5), eventTime(5))
}
