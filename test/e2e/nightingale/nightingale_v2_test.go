package nightingale_test

import (
	"fmt"
	"math"
	"net/http"
	"testing"

	"github.com/aviaryhq/aviary/test/systems/remotewrite"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestNightingaleSpeaksVersion2 sends a 2.0 request in which one series is invalid:
// the others are on the topic, and the answer's counts are what the topic holds.
func TestNightingaleSpeaksVersion2(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	topic := pulsar.Topic(t, pulsar.Namespace(t), 3)
	s := startNightingale(t, pulsar.URL(), topic, nil)
	s.awaitReady(t)

	table := writev2.NewSymbolTable()
	labels := func(pairs ...string) (refs []uint32) {
		for _, text := range pairs {
			refs = append(refs, table.Symbolize(text))
		}
		return refs
	}
	about := writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: table.Symbolize("Requests."), UnitRef: table.Symbolize("requests")}
	req := new(writev2.Request)
	for i := range 100 {
		req.Timeseries = append(req.Timeseries, writev2.TimeSeries{
			LabelsRefs: labels("__name__", "requests_total", "series", fmt.Sprint(i)),
			Samples:    []writev2.Sample{{Timestamp: 1_700_000_000_123, Value: float64(i), StartTimestamp: 1_600_000_000_000}, {Timestamp: 1_700_000_001_123, Value: math.Float64frombits(0x7ff0000000000002)}},
			Metadata:   about,
		})
	}
	req.Timeseries = append(req.Timeseries,
		writev2.TimeSeries{LabelsRefs: labels("series", "without a name"), Samples: []writev2.Sample{{Timestamp: 1}}},
		writev2.TimeSeries{
			LabelsRefs: labels("__name__", "latency"),
			Histograms: []writev2.Histogram{{
				Count: &writev2.Histogram_CountInt{CountInt: 3}, Sum: 4.5, ZeroCount: &writev2.Histogram_ZeroCountInt{ZeroCountInt: 1},
				PositiveSpans: []writev2.BucketSpan{{Length: 1}}, PositiveDeltas: []int64{2}, Timestamp: 3,
			}},
			Exemplars: []writev2.Exemplar{{LabelsRefs: labels("trace_id", "t1"), Value: 3, Timestamp: 4}},
		})
	req.Symbols = table.Symbols()
	answer, err := remotewrite.Send(t.Context(), s.write, req, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, answer.Status)
	assert.Contains(t, answer.Text, "1 of 102 series are invalid")
	for kind, want := range map[string]string{"Samples": "200", "Histograms": "1", "Exemplars": "1"} {
		assert.Equal(t, want, answer.Header.Get("X-Prometheus-Remote-Write-"+kind+"-Written"), kind)
	}

	last := map[string]int64{}
	samples, stale, histograms, exemplars := 0, 0, 0, 0
	for _, m := range readMessages(t, pulsar.URL(), topic) {
		switch {
		case m.Histogram != nil:
			histograms++
		case m.Exemplar != nil:
			exemplars++
		default:
			samples++
			assert.Greater(t, m.Timestamp, last[m.Key], "in order within the series")
			last[m.Key] = m.Timestamp
			if m.Stale {
				stale++
			}
		}
	}
	assert.Equal(t, []int{200, 100, 1, 1}, []int{samples, stale, histograms, exemplars})
	assert.Len(t, last, 100)
}
