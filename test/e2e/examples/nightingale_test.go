package examples

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/systems/remotewrite"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// request is what a sender writes at one time: many series with a sample each, and some that are
// odd. want has what a consumer is to print of it, by series, in order.
func request(round int) (req *prompb.WriteRequest, want map[string][]string) {
	req, want = new(prompb.WriteRequest), map[string][]string{}
	at := 1_700_000_000_000 + int64(round)*15_000
	add := func(line string, ts prompb.TimeSeries, values ...string) {
		req.Timeseries = append(req.Timeseries, ts)
		for i, v := range values {
			want[line] = append(want[line], fmt.Sprint(v, " ", at+int64(i)))
		}
	}
	labels := func(pairs ...string) (all []prompb.Label) {
		for i := 0; i+1 < len(pairs); i += 2 {
			all = append(all, prompb.Label{Name: pairs[i], Value: pairs[i+1]})
		}
		return all
	}
	samples := func(values ...float64) (all []prompb.Sample) {
		for i, v := range values {
			all = append(all, prompb.Sample{Timestamp: at + int64(i), Value: v})
		}
		return all
	}
	for i := range 200 {
		add(fmt.Sprintf(`requests_total{job="api",series="%d"}`, i),
			prompb.TimeSeries{Labels: labels("__name__", "requests_total", "job", "api", "series", strconv.Itoa(i)), Samples: samples(float64(round))},
			strconv.Itoa(round))
	}
	add(`odd{a="\"quoted\" \\ \n line",zone="grün 東京"}`,
		prompb.TimeSeries{
			Labels:    labels("zone", "grün 東京", "__name__", "odd", "a", "\"quoted\" \\ \n line"),
			Samples:   samples(0.1, 1e21, -2.5e-7, math.Inf(1), math.Inf(-1), math.NaN(), math.Float64frombits(0x7ff0000000000002), math.MaxFloat64),
			Exemplars: []prompb.Exemplar{{Labels: labels("trace_id", "t1"), Value: 3, Timestamp: at}},
		},
		"0.1", "1e+21", "-2.5e-07", "+Inf", "-Inf", "NaN", "stale", "1.7976931348623157e+308")
	integers := func(sum float64, offset int64) prompb.Histogram {
		return prompb.Histogram{
			Count: &prompb.Histogram_CountInt{CountInt: 5}, ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1}, Sum: sum, Schema: 3,
			PositiveSpans: []prompb.BucketSpan{{Offset: -2, Length: 2}}, PositiveDeltas: []int64{3, -2}, Timestamp: at + offset,
		}
	}
	add(`latency_seconds{job="api"}`,
		prompb.TimeSeries{Labels: labels("__name__", "latency_seconds", "job", "api"), Histograms: []prompb.Histogram{
			integers(4.5, 0),
			{
				Count: &prompb.Histogram_CountFloat{CountFloat: 2.5}, ZeroCount: &prompb.Histogram_ZeroCountFloat{ZeroCountFloat: 0.5}, Sum: -1,
				NegativeSpans: []prompb.BucketSpan{{Length: 1}}, NegativeCounts: []float64{2}, Timestamp: at + 1,
			},
			integers(math.Float64frombits(0x7ff0000000000002), 2),
		}},
		"histogram(count=5,sum=4.5)", "histogram(count=2.5,sum=-1)", "stale")
	return req, want
}

func write(t *testing.T, address string, req *prompb.WriteRequest) {
	t.Helper()
	for deadline := time.Now().Add(await.Patience); ; time.Sleep(20 * time.Millisecond) { // as a sender does, until it is ready
		answer, err := remotewrite.Send(t.Context(), "http://"+address+"/api/v1/write", req, nil)
		require.NoError(t, err)
		if answer.Status == http.StatusNoContent {
			return
		}
		require.True(t, answer.Status == http.StatusServiceUnavailable && time.Now().Before(deadline), "%d %s", answer.Status, answer.Text)
	}
}

// numberText writes numbers of any language alike.
func numberText(text string) string {
	if rest, ok := strings.CutPrefix(text, "histogram(count="); ok {
		count, sum, _ := strings.Cut(strings.TrimSuffix(rest, ")"), ",sum=")
		return "histogram(count=" + numberText(count) + ",sum=" + numberText(sum) + ")"
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return text
}

// bySeries puts lines of the form `name{labels} value timestamp` in order.
func bySeries(t *testing.T, lines []string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, line := range lines {
		end := strings.LastIndexByte(line, ' ')
		require.Positive(t, end, "%q", lines)
		middle := strings.LastIndexByte(line[:end], ' ')
		require.Positive(t, middle, line)
		all[line[:middle]] = append(all[line[:middle]], numberText(line[middle+1:end])+line[end:])
	}
	return all
}

// TestNightingaleConsumers: every consumer prints every sample of every format once, each series in
// order, and goes on where it has stopped.
func TestNightingaleConsumers(t *testing.T) {
	t.Parallel()
	const rounds = 3
	pulsar := stack.Pulsar(t)
	namespace := pulsar.Namespace(t)
	formats := []string{"json", "protobuf", "packed"}
	topics, doors := map[string]string{}, map[string]string{}
	want := map[string][]string{}
	for round := range rounds {
		_, part := request(round)
		for series, values := range part {
			want[series] = append(want[series], values...)
		}
	}
	for _, format := range formats {
		topics[format] = pulsar.Topic(t, namespace, 3)
		service := systems.Run(t, nil, []string{
			theService + "=nightingale", "NIGHTINGALE_PULSAR_URL=" + pulsar.URL(), "NIGHTINGALE_TOPIC=" + topics[format], "NIGHTINGALE_FORMAT=" + format,
			"NIGHTINGALE_MESSAGE_BYTES=4KiB", "NIGHTINGALE_HTTP_LISTEN=127.0.0.1:0", "NIGHTINGALE_ADMIN_LISTEN=127.0.0.1:0",
		})
		doors[format] = service.Address("http")
		for round := range rounds {
			req, _ := request(round)
			write(t, doors[format], req)
		}
	}
	dir := t.TempDir()
	check := func(t *testing.T, formats []string, want map[string][]string) {
		t.Helper()
		n := 0
		for _, values := range want {
			n += len(values)
		}
		inEach(t, dir, "nightingale", func(t *testing.T, example []string) {
			t.Helper()
			for _, format := range formats {
				args := []string{"--url", pulsar.URL(), "--topic", topics[format], "--subscription", path.Base(t.Name()), "--format", format}
				assert.Equal(t, want, bySeries(t, printed(t, example, n, args...)), format)
			}
		})
	}
	t.Run("first", func(t *testing.T) { check(t, formats, want) })
	// What they have acknowledged does not come again.
	again := []string{"packed"}
	req, later := request(rounds)
	for _, format := range again {
		write(t, doors[format], req)
	}
	t.Run("again", func(t *testing.T) { check(t, again, later) })
}

// TestProtocolFilesAreEqual: each example is complete by itself.
func TestProtocolFilesAreEqual(t *testing.T) {
	one, err := os.ReadFile(consumers + "/python/prometheus.proto")
	require.NoError(t, err)
	other, err := os.ReadFile(consumers + "/java/src/main/proto/prometheus.proto")
	require.NoError(t, err)
	assert.Equal(t, string(one), string(other))
}
