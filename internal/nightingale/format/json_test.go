package format

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func encoded(t testing.TB, b *batch.Batch) []string {
	t.Helper()
	bad, _ := remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
	require.Empty(t, bad.First)
	var out Messages
	EncodeJSON(b, nil, &out)
	var lines []string
	for _, r := range out.Records {
		require.True(t, json.Valid(r.Payload), "%s", r.Payload)
		assert.Len(t, r.Key, 16)
		lines = append(lines, string(r.Payload))
	}
	return lines
}

// TestJSONMessages is the format's reference: what consumers may rely on.
func TestJSONMessages(t *testing.T) {
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV1(b, writetest.Marshal(t, writetest.Everything()), remotewrite.DefaultLimits()))
	const series = `{"name":"latency","labels":{"job":"api"},"timestamp":`
	assert.Equal(t, []string{
		series + `1,"value":1.5}`,
		series + `2,"value":"NaN","stale":true}`,
		series + `-3,"value":"-Inf"}`,
		series + `7,"exemplar":{"labels":{"trace_id":"abc"},"value":0.25}}`,
		series + `8,"exemplar":{"labels":{},"value":2}}`,
		series + `9,"histogram":{"count":10,"sum":12.5,"schema":-2,"zero_threshold":1e-128,"zero_count":1,` +
			`"positive_spans":[[-1,2],[3,1]],"negative_spans":[[0,2]],"positive_deltas":[1,1,2],"negative_deltas":[2,-2],"reset_hint":"no"}}`,
		series + `10,"histogram":{"count":2.5,"sum":"NaN","schema":-53,"zero_threshold":0,"zero_count":0,` +
			`"positive_spans":[[0,2]],"positive_counts":[1,1.5],"custom_values":[0.5,1],"reset_hint":"gauge"}}`,
	}, encoded(t, b))
}

func TestJSONFloatsReadBackTheSame(t *testing.T) {
	for _, v := range []float64{
		0, math.Copysign(0, -1), 1, -1, 0.1, 1e21, 1e20, 1e-7, 123456789.125, 1 << 53, -1 << 53, 1<<53 - 1, 1<<53 + 2, math.MaxInt64, math.MinInt64,
		math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, math.Pi, 1.7951984859017193e+09,
	} {
		text := string(appendFloat(nil, v))
		var got float64
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		assert.Equal(t, math.Float64bits(v), math.Float64bits(got), "%v as %s", v, text)
	}
	for v, want := range map[float64]string{math.Inf(1): `"+Inf"`, math.Inf(-1): `"-Inf"`} {
		assert.Equal(t, want, string(appendFloat(nil, v)))
		back, err := strconv.ParseFloat(want[1:len(want)-1], 64)
		require.NoError(t, err)
		assert.InDelta(t, v, back, 0)
	}
	assert.Equal(t, `"NaN"`, string(appendFloat(nil, math.NaN())))
}

// TestEveryByteIsEscapedWhereverItStands: strings are looked at by eight bytes.
func TestEveryByteIsEscapedWhereverItStands(t *testing.T) {
	for _, size := range []int{1, 7, 8, 9, 15, 16, 17, 30} {
		for at := range size {
			for c := range byte(0x80) {
				text := []byte(strings.Repeat("x", size))
				text[at] = c
				var got string
				require.NoError(t, json.Unmarshal(appendString(nil, string(text)), &got))
				require.Equal(t, string(text), got)
			}
		}
	}
}

func FuzzJSONString(f *testing.F) {
	for _, s := range []string{"", "plain", `quo"te \ back`, "\x00\x1f\n\r\t", "Köln 東京 \u2028", "\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if truncate.Text(s, len(s)+3) != s {
			return // validation refuses what is not UTF-8
		}
		var got string
		require.NoError(t, json.Unmarshal(appendString(nil, s), &got))
		require.Equal(t, s, got)
	})
}

func BenchmarkJSON(b *testing.B) {
	space, limits := new(batch.Batch), remotewrite.DefaultLimits()
	require.NoError(b, remotewrite.DecodeV1(space, writetest.Marshal(b, writetest.Request(2000, 10)), limits))
	remotewrite.Validate(space, limits, nil)
	var out Messages
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		EncodeJSON(space, nil, &out)
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "samples/s")
}

// TestDecodeV2Messages is the reference of what version 2 adds to the messages.
func TestDecodeV2Messages(t *testing.T) {
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV2(b, writetest.MarshalV2(t, writetest.EverythingV2()), remotewrite.DefaultLimits()))
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
