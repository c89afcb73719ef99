package nightingale

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

const contentV2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

// answer is what a sender sees.
type answer struct {
	status int
	text   string
	header http.Header
}

func (d *double) write(t testing.TB, contentType string, body []byte) answer {
	t.Helper()
	status, text, header := d.post(t, writetest.Compress(body), "Content-Type", contentType)
	return answer{status, text, header}
}

func (d *double) v1(t testing.TB, req *prompb.WriteRequest) answer {
	t.Helper()
	return d.write(t, "application/x-protobuf", writetest.Marshal(t, req))
}

func (d *double) v2(t testing.TB, req *writev2.Request) answer {
	t.Helper()
	return d.write(t, contentV2, writetest.MarshalV2(t, req))
}

// written returns the counts that an answer has, "s/h/e", and "" when it has none.
func (a answer) written() string {
	var counts []string
	for _, kind := range []string{"Samples", "Histograms", "Exemplars"} {
		counts = append(counts, a.header.Get("X-Prometheus-Remote-Write-"+kind+"-Written"))
	}
	if text := strings.Join(counts, "/"); text != "//" {
		return text
	}
	return ""
}

// payloads returns the messages without their keys.
func (d *double) payloads() (all []string) {
	for _, m := range d.published() {
		all = append(all, m[17:])
	}
	return all
}

// TestChecklist has a test for each line of the receiver's obligations, by number,
// as facts/remote-write.md lists them.
func TestChecklist(t *testing.T) {
	t.Run("1_post_of_a_snappy_block_of_bounded_size", checklistBlock)
	t.Run("2_content_types_and_encodings_else_415", checklistContentTypes)
	t.Run("3_204_and_empty_or_not_2xx_and_bounded_text", checklistAnswers)
	t.Run("4_v2_answers_carry_written_counts", checklistCounts)
	t.Run("5_400_for_invalid_5xx_for_what_passes", checklistStatuses)
	t.Run("6_labels", checklistLabels)
	t.Run("7_v2_symbols_and_parts", checklistSymbols)
	t.Run("8_timestamps_stale_markers_and_special_numbers", checklistValues)
	t.Run("9_native_histograms", checklistHistograms)
	t.Run("10_answers_wait_for_the_acknowledgement", checklistWaits)
}

func checklistBlock(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Limits.DecodedBytes = config.MiB })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL+"/api/v1/write", nil)
	require.NoError(t, err)
	resp, err := d.Client().Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)

	for _, content := range []string{"application/x-protobuf", contentV2} {
		status, text, _ := d.post(t, strings.NewReader("plain"), "Content-Type", content)
		assert.Equal(t, http.StatusBadRequest, status, text)
		var framed bytes.Buffer
		w := snappy.NewBufferedWriter(&framed)
		_, err = w.Write([]byte("the stream format"))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		status, text, _ = d.post(t, &framed, "Content-Type", content)
		assert.Equal(t, http.StatusBadRequest, status, text)
		bomb := append(binary.AppendUvarint(nil, 1<<30), 0, 0, 0, 0)
		status, text, _ = d.post(t, bytes.NewReader(bomb), "Content-Type", content)
		assert.Equal(t, http.StatusRequestEntityTooLarge, status, text)
	}
	assert.Empty(t, d.published())
	assert.Equal(t, http.StatusNoContent, d.v2(t, writetest.RequestV2(2, 3)).status)
}

func checklistContentTypes(t *testing.T) {
	d := newDouble(t, nil)
	v1, v2 := writetest.Marshal(t, writetest.Request(1, 2)), writetest.MarshalV2(t, writetest.RequestV2(1, 2))
	for _, test := range []struct {
		content string
		body    []byte
		status  int
	}{
		{"application/x-protobuf", v1, 204},
		{"application/x-protobuf;proto=prometheus.WriteRequest", v1, 204},
		{contentV2, v2, 204},
		{"application/x-protobuf; proto=\"io.prometheus.write.v2.Request\"", v2, 204},
		{"Application/X-Protobuf; Proto=io.prometheus.write.v2.Request", v2, 204},
		{"application/x-protobuf;proto=io.prometheus.write.v1.Request", v1, 415},
		{"application/x-protobuf;proto=", v1, 415},
		{"application/json", v1, 415},
		{"text/plain", v2, 415},
		{"", v1, 204},
		{"", v2, 400},
		// Of the wrong version they would decode as empty requests.
		{"application/x-protobuf", v2, 400},
		{contentV2, v1, 400},
	} {
		t.Run(test.content, func(t *testing.T) {
			before := len(d.published())
			a := d.write(t, test.content, test.body)
			assert.Equal(t, test.status, a.status, a.text)
			if a.status != 204 {
				assert.Len(t, d.published(), before)
			}
		})
	}
	for _, encoding := range []string{"gzip", "zstd", "identity"} {
		status, text, _ := d.post(t, writetest.Compress(v2), "Content-Type", contentV2, "Content-Encoding", encoding)
		assert.Equal(t, http.StatusUnsupportedMediaType, status, text)
	}
}

func checklistAnswers(t *testing.T) {
	d := newDouble(t, nil)
	for _, a := range []answer{d.v1(t, writetest.Request(5, 3)), d.v2(t, writetest.RequestV2(5, 3))} {
		assert.Equal(t, http.StatusNoContent, a.status)
		assert.Empty(t, a.text)
	}
	bad := writetest.RequestV2(8000, 3)
	for i := range bad.Timeseries {
		bad.Timeseries[i].LabelsRefs[1] = math.MaxUint32
	}
	a := d.v2(t, bad)
	assert.Equal(t, http.StatusBadRequest, a.status)
	assert.Contains(t, a.text, "8000 of 8000 series are invalid")
	assert.Contains(t, a.text, "and 7995 more")
	assert.LessOrEqual(t, len(a.text), refusal.MaxAnswer+10)
	d.publish = func(context.Context, []messaging.Record) (bool, error) { return true, fmt.Errorf("some error") }
	assert.Equal(t, http.StatusInternalServerError, d.v2(t, writetest.RequestV2(1, 2)).status)
}

func checklistCounts(t *testing.T) {
	partly := writetest.EverythingV2()
	partly.Timeseries = append(partly.Timeseries, partly.Timeseries...)
	partly.Timeseries[0].LabelsRefs = []uint32{3, 4} // no name
	partly.Timeseries[3].Histograms = partly.Timeseries[3].Histograms[:1]
	partly.Timeseries[3].Histograms[0].Schema = 100 // and, the array being shared, also that of [1]
	partly.Timeseries[1].Histograms = writetest.EverythingV2().Timeseries[1].Histograms

	t.Run("written", func(t *testing.T) {
		d := newDouble(t, nil)
		assert.Equal(t, "3/2/2", d.v2(t, writetest.EverythingV2()).written())
		assert.Equal(t, "2000/0/0", d.v2(t, writetest.RequestV2(2000, 10)).written())
		assert.Equal(t, "0/0/0", d.v2(t, &writev2.Request{}).written())
		assert.Equal(t, "0/0/0", d.v2(t, &writev2.Request{Symbols: []string{""}}).written())
	})
	t.Run("some of them", func(t *testing.T) {
		d := newDouble(t, nil)
		a := d.v2(t, partly)
		assert.Equal(t, http.StatusBadRequest, a.status, a.text)
		assert.Equal(t, "3/2/2", a.written(), a.text)
		assert.Len(t, d.published(), 7)
	})
	t.Run("none", func(t *testing.T) {
		d := newDouble(t, nil)
		a := d.write(t, contentV2, []byte("\xff"))
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Equal(t, "0/0/0", a.written())
		status, _, header := d.post(t, strings.NewReader("not snappy"), "Content-Type", contentV2)
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Equal(t, "0/0/0", answer{header: header}.written())
	})
	t.Run("zero on 5xx", func(t *testing.T) {
		d := newDouble(t, nil)
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			return true, refusal.Unavailable("timeout", refusal.RetryUnavailable, "late")
		}
		for _, req := range []*writev2.Request{writetest.EverythingV2(), partly} {
			a := d.v2(t, req)
			assert.Equal(t, http.StatusServiceUnavailable, a.status)
			assert.Equal(t, "0/0/0", a.written())
		}
		elsewhere := d.receiver.budget.Hold("another")
		require.NoError(t, elsewhere.Set(d.receiver.budget.Limit()))
		defer elsewhere.Release()
		a := d.v2(t, writetest.EverythingV2())
		assert.Equal(t, http.StatusServiceUnavailable, a.status)
		assert.Equal(t, "0/0/0", a.written())
	})
	t.Run("not in version 1", func(t *testing.T) {
		d := newDouble(t, nil)
		assert.Empty(t, d.v1(t, writetest.Everything()).written())
		assert.Empty(t, d.v1(t, writetest.OneSeries("job", "a")).written())
	})
}

func checklistStatuses(t *testing.T) {
	d := newDouble(t, nil)
	req := writetest.RequestV2(20, 3)
	for i := range 10 {
		req.Timeseries[2*i].LabelsRefs = req.Timeseries[2*i].LabelsRefs[2:] // no name
	}
	a := d.v2(t, req)
	assert.Equal(t, http.StatusBadRequest, a.status)
	assert.Empty(t, a.header.Get("Retry-After"))
	assert.Contains(t, a.text, "10 of 20 series are invalid")
	assert.Len(t, d.published(), 10, "the valid rest is written")

	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		return true, refusal.Unavailable("queue_full", refusal.RetryBusy, "the publish queue is full")
	}
	req.Timeseries[1].Samples[0].Value++ // another body: the first one has been answered
	a = d.v2(t, req)
	assert.Equal(t, http.StatusServiceUnavailable, a.status, "what passes outweighs what is invalid")
	assert.NotEmpty(t, a.header.Get("Retry-After"))
	assert.NotEqual(t, http.StatusTooManyRequests, a.status)
}

func checklistLabels(t *testing.T) {
	for _, test := range []struct {
		name   string
		labels []string
		status int
	}{
		{"no name", []string{"job", "a"}, 400},
		{"none", nil, 400},
		{"twice", []string{"__name__", "m", "a", "1", "a", "2"}, 400},
		{"twice the same", []string{"__name__", "m", "a", "1", "a", "1"}, 400},
		{"empty name", []string{"__name__", "m", "", "1"}, 400},
		{"empty value", []string{"__name__", "m", "a", ""}, 204},
		{"empty metric name", []string{"__name__", "", "a", "1"}, 400},
		{"not UTF-8", []string{"__name__", "m", "a", "\xff"}, 400},
		{"UTF-8", []string{"__name__", "Größe der Menge", "städt.name", "Köln"}, 204},
		{"not sorted", []string{"b", "2", "__name__", "m", "a", "1"}, 204},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDouble(t, nil)
			one, two := d.v1(t, writetest.OneSeries(test.labels...)), d.v2(t, writetest.V2Of(test.labels...))
			assert.Equal(t, test.status, one.status, one.text)
			assert.Equal(t, test.status, two.status, two.text)
			if messages := d.published(); test.status == 204 {
				require.Len(t, messages, 2)
				assert.Equal(t, messages[0], messages[1], "both versions, key included")
			} else {
				assert.Empty(t, messages)
			}
		})
	}
	t.Run("10,000", func(t *testing.T) {
		many := []string{"__name__", "m"}
		for i := range 10_000 {
			many = append(many, fmt.Sprintf("l%05d", i), "v")
		}
		a := newDouble(t, nil).v2(t, writetest.V2Of(many...))
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Contains(t, a.text, "at most 128")
	})
}

func checklistSymbols(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*writev2.Request)
		says   string
	}{
		{"first symbol", func(r *writev2.Request) { r.Symbols[0] = "x" }, "empty string"},
		{"no symbols", func(r *writev2.Request) { r.Symbols = nil }, "empty string"},
		{"label out of bounds", func(r *writev2.Request) { r.Timeseries[0].LabelsRefs[3] = 9 }, "not there"},
		{"label far out of bounds", func(r *writev2.Request) { r.Timeseries[0].LabelsRefs[3] = math.MaxUint32 }, "not there"},
		{"help out of bounds", func(r *writev2.Request) { r.Timeseries[0].Metadata.HelpRef = 9 }, "not there"},
		{"unit out of bounds", func(r *writev2.Request) { r.Timeseries[0].Metadata.UnitRef = 9 }, "not there"},
		{"exemplar label out of bounds", func(r *writev2.Request) { r.Timeseries[0].Exemplars[0].LabelsRefs[0] = 9 }, "not there"},
		{"odd count", func(r *writev2.Request) { r.Timeseries[0].LabelsRefs = []uint32{1, 2, 3} }, "odd number"},
		{"odd count in an exemplar", func(r *writev2.Request) { r.Timeseries[0].Exemplars[0].LabelsRefs = []uint32{5} }, "odd number"},
		{"nothing", func(r *writev2.Request) { r.Timeseries[0].Samples, r.Timeseries[0].Exemplars = nil, nil }, "neither"},
		{"exemplars only", func(r *writev2.Request) { r.Timeseries[0].Samples = nil }, "neither"},
		{"both", func(r *writev2.Request) { r.Timeseries[0].Histograms = r.Timeseries[1].Histograms }, "both"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDouble(t, nil)
			req := writetest.EverythingV2()
			test.change(req)
			a := d.v2(t, req)
			assert.Equal(t, http.StatusBadRequest, a.status, a.text)
			assert.Contains(t, a.text, test.says)
			if strings.HasSuffix(test.says, "string") {
				assert.Empty(t, d.published())
				assert.Equal(t, "0/0/0", a.written())
			} else {
				assert.Len(t, d.published(), 2, "the histograms")
				assert.Equal(t, "0/2/0", a.written())
			}
			assert.Equal(t, http.StatusNoContent, d.v2(t, writetest.EverythingV2()).status)
		})
	}
	t.Run("start timestamps of both release candidates", func(t *testing.T) {
		d := newDouble(t, nil)
		a := d.v2(t, writetest.EverythingV2())
		require.Equal(t, http.StatusNoContent, a.status, a.text)
		assert.Contains(t, d.payloads()[0], `"start_timestamp":-4`)
		old := writetest.V2Of("__name__", "m")
		old.Timeseries[0].XXX_unrecognized = []byte{6 << 3, 77}
		a = d.v2(t, old)
		require.Equal(t, http.StatusNoContent, a.status, a.text)
		assert.JSONEq(t, `{"name":"m","labels":{},"timestamp":1,"start_timestamp":77,"value":1}`, d.payloads()[7])
	})
	t.Run("small bodies that expand to large ones", func(t *testing.T) {
		d := newDouble(t, func(c *Config) { c.Limits.DecodedBytes = config.MiB })
		req := writetest.V2Of("__name__", strings.Repeat("m", 1<<10), "l", strings.Repeat("v", 60<<10))
		for range 100 {
			req.Timeseries = append(req.Timeseries, req.Timeseries[0])
		}
		a := d.v2(t, req)
		assert.Equal(t, http.StatusRequestEntityTooLarge, a.status, a.text)
		assert.Zero(t, d.receiver.budget.Used())
	})
}

func checklistValues(t *testing.T) {
	d := newDouble(t, nil)
	one, two := writetest.OneSeries("__name__", "m"), writetest.V2Of("__name__", "m")
	one.Timeseries[0].Samples, two.Timeseries[0].Samples = nil, nil
	for i, v := range []float64{1.5, math.NaN(), writetest.StaleNaN(), math.Inf(1), math.Inf(-1)} {
		one.Timeseries[0].Samples = append(one.Timeseries[0].Samples, prompb.Sample{Timestamp: 1_700_000_000_123 + int64(i), Value: v})
		two.Timeseries[0].Samples = append(two.Timeseries[0].Samples, writev2.Sample{Timestamp: 1_700_000_000_123 + int64(i), Value: v})
	}
	want := []string{
		`{"name":"m","labels":{},"timestamp":1700000000123,"value":1.5}`,
		`{"name":"m","labels":{},"timestamp":1700000000124,"value":"NaN"}`,
		`{"name":"m","labels":{},"timestamp":1700000000125,"value":"NaN","stale":true}`,
		`{"name":"m","labels":{},"timestamp":1700000000126,"value":"+Inf"}`,
		`{"name":"m","labels":{},"timestamp":1700000000127,"value":"-Inf"}`,
	}
	require.Equal(t, http.StatusNoContent, d.v1(t, one).status)
	require.Equal(t, http.StatusNoContent, d.v2(t, two).status)
	assert.Equal(t, append(want, want...), d.payloads())
	for _, m := range d.payloads() {
		assert.True(t, json.Valid([]byte(m)), m)
	}
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV2(b, writetest.MarshalV2(t, two), remotewrite.DefaultLimits()))
	assert.Equal(t, uint64(0x7ff0000000000002), math.Float64bits(b.Samples[2].Value))

	year1 := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	year9999 := time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC).UnixMilli()
	for timestamp, status := range map[int64]int{
		0: 204, -1: 204, year1: 204, year9999: 204,
		year1 - 1: 400, year9999 + 1: 400, math.MinInt64: 400, math.MaxInt64: 400,
		1_700_000_000_000_000: 400, // microseconds
	} {
		one, two, exemplar := writetest.OneSeries("__name__", "m"), writetest.V2Of("__name__", "m"), writetest.V2Of("__name__", "m")
		one.Timeseries[0].Samples[0].Timestamp = timestamp
		two.Timeseries[0].Samples[0].Timestamp = timestamp
		exemplar.Timeseries[0].Exemplars = []writev2.Exemplar{{Timestamp: timestamp}}
		for _, a := range []answer{d.v1(t, one), d.v2(t, two), d.v2(t, exemplar)} {
			assert.Equal(t, status, a.status, "%d: %s", timestamp, a.text)
		}
	}
}

func checklistHistograms(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(exponential, custom *writev2.Histogram)
		status int
	}{
		{"as they should be", func(_, _ *writev2.Histogram) {}, 204},
		{"stale", func(e, _ *writev2.Histogram) {
			*e = writev2.Histogram{Count: &writev2.Histogram_CountInt{}, Sum: writetest.StaleNaN()}
		}, 204},
		{"wrong count", func(e, _ *writev2.Histogram) { e.Count = &writev2.Histogram_CountInt{CountInt: 11} }, 400},
		{"spans without buckets", func(e, _ *writev2.Histogram) { e.PositiveDeltas = nil }, 400},
		{"unknown schema", func(e, _ *writev2.Histogram) { e.Schema = 53 }, 400},
		{"custom bounds that do not rise", func(_, c *writev2.Histogram) { c.CustomValues = []float64{1, 1} }, 400},
		{"a custom bound that is infinite", func(_, c *writev2.Histogram) { c.CustomValues = []float64{1, math.Inf(1)} }, 400},
		{"a custom bound that is no number", func(_, c *writev2.Histogram) { c.CustomValues = []float64{1, math.NaN()} }, 400},
		{"more buckets than custom bounds", func(_, c *writev2.Histogram) { c.PositiveSpans[0].Offset = 2 }, 400},
		{"custom buckets before the first", func(_, c *writev2.Histogram) { c.PositiveSpans[0].Offset = -1 }, 400},
		{"custom buckets with a zero bucket", func(_, c *writev2.Histogram) { c.ZeroCount = &writev2.Histogram_ZeroCountFloat{ZeroCountFloat: 1} }, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDouble(t, nil)
			req := writetest.EverythingV2()
			test.change(&req.Timeseries[1].Histograms[0], &req.Timeseries[1].Histograms[1])
			a := d.v2(t, req)
			assert.Equal(t, test.status, a.status, a.text)
			if test.status == 204 {
				assert.Equal(t, "3/2/2", a.written())
			} else {
				assert.Equal(t, "3/0/2", a.written())
			}
		})
	}
	// Version 1 has its fields under the numbers of its own proto.
	d := newDouble(t, nil)
	a := d.v1(t, writetest.Everything())
	require.Equal(t, http.StatusNoContent, a.status, a.text)
	assert.Contains(t, strings.Join(d.payloads(), "\n"), `"custom_values":[0.5,1]`)
	assert.Contains(t, strings.Join(d.payloads(), "\n"), `"exemplar":{"labels":{"trace_id":"abc"}`)
}

func checklistWaits(t *testing.T) {
	d := newDouble(t, nil)
	acknowledge, entered := make(chan struct{}), make(chan struct{})
	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		close(entered)
		<-acknowledge
		return true, nil
	}
	answered := make(chan int, 1)
	body := writetest.Compress(writetest.MarshalV2(t, writetest.RequestV2(3, 3)))
	go func() {
		status := 0
		resp, err := http.Post(d.URL+"/api/v1/write", contentV2, body)
		if assert.NoError(t, err) {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			status = resp.StatusCode
		}
		answered <- status
	}()
	<-entered
	select {
	case status := <-answered:
		t.Fatalf("answered %d before the acknowledgement", status)
	default:
	}
	close(acknowledge)
	assert.Equal(t, http.StatusNoContent, <-answered)
}

// TestSeriesWithExemplarsOnly: by choice they are written, and counted. A series with
// nothing at all stays invalid.
func TestSeriesWithExemplarsOnly(t *testing.T) {
	for _, name := range format.Names() {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t, func(c *Config) { c.Format, c.ExemplarSeries = name, acceptSeries })
			req := writetest.EverythingV2()
			req.Timeseries[0].Samples = nil
			exemplars := len(req.Timeseries[0].Exemplars)
			a := d.v2(t, req)
			assert.Equal(t, http.StatusNoContent, a.status, a.text)
			assert.Equal(t, fmt.Sprintf("0/2/%d", exemplars), a.written())
			if found := format.Find(name); !found.SamplesOnly {
				assert.Contains(t, strings.Join(d.published(), ""), "trace_id")
				assert.InDelta(t, exemplars, testutil.ToFloat64(d.metrics.samples.WithLabelValues("exemplar", "written")), 0)
			}

			req.Timeseries[0].Exemplars[0].LabelsRefs = []uint32{5}
			a = d.v2(t, req)
			assert.Equal(t, http.StatusBadRequest, a.status, "an exemplar that is wrong")
			assert.Equal(t, "0/2/0", a.written())
			req.Timeseries[0].Exemplars = nil
			a = d.v2(t, req)
			assert.Equal(t, http.StatusBadRequest, a.status, "nothing at all")
			assert.Contains(t, a.text, "neither")
			assert.Equal(t, "0/2/0", a.written())
		})
	}
}
