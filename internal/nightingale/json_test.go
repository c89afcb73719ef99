package nightingale

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/door"
)

func encoded(t testing.TB, b *batch) []string {
	t.Helper()
	bad, _ := b.validate(testLimits(), nil)
	require.Empty(t, bad.first)
	var out outgoing
	encodeJSON(b, &out)
	var lines []string
	for _, r := range out.records {
		require.True(t, json.Valid(r.Payload), "%s", r.Payload)
		assert.Len(t, r.Key, 16)
		lines = append(lines, string(r.Payload))
	}
	return lines
}

// TestJSONMessages is the format's reference: what consumers may rely on.
func TestJSONMessages(t *testing.T) {
	b := new(batch)
	require.NoError(t, decodeV1(b, marshal(t, everything()), testLimits()))
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

// TestMessagesLargerThanTheirBudget: labels are repeated with every sample, so that a
// small body may stand for messages that no memory has room for.
func TestMessagesLargerThanTheirBudget(t *testing.T) {
	for name, value := range map[string]string{"long": strings.Repeat("x", 60<<10), "escaped": strings.Repeat("\x01", 12<<10)} {
		req := oneSeries("__name__", "m", "label", value)
		for len(req.Timeseries[0].Samples) < 1500 {
			req.Timeseries[0].Samples = append(req.Timeseries[0].Samples, prompb.Sample{Value: 1, Timestamp: 5})
		}
		d := newDouble(t, nil)
		status, text, _ := d.post(t, compress(marshal(t, req)))
		assert.Equal(t, http.StatusRequestEntityTooLarge, status, name)
		assert.Contains(t, text, "at most 67108864 are allowed")
		assert.Empty(t, d.published())
		assert.Zero(t, d.receiver.budget.Used())
	}
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
		if door.Cut(s, len(s)+3) != s {
			return // validation refuses what is not UTF-8
		}
		var got string
		require.NoError(t, json.Unmarshal(appendString(nil, s), &got))
		require.Equal(t, s, got)
	})
}

func BenchmarkJSON(b *testing.B) {
	space, limits := new(batch), testLimits()
	require.NoError(b, decodeV1(space, marshal(b, request(2000, 10)), limits))
	space.validate(limits, nil)
	var out outgoing
	b.ReportAllocs()
	for b.Loop() {
		out.reset()
		encodeJSON(space, &out)
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "samples/s")
}
