package nightingale

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"

	"github.com/aviaryhq/aviary/internal/door"
)

// leastRead is what is reserved for a body before its first byte.
const leastRead = 4 << 10

// TestSlowBodiesHoldWhatHasArrived: senders that claim much and send little leave the
// others their room.
func TestSlowBodiesHoldWhatHasArrived(t *testing.T) {
	for name, framing := range map[string]string{"sized": "Content-Length: 10000000\r\n\r\nabc", "chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t, nil)
			const slow = 20
			for range slow {
				d.dial(t, head+framing)
			}
			require.Eventually(t, func() bool { return d.receiver.budget.Used() == slow*leastRead }, 5*time.Second, time.Millisecond)
			status, text, _ := d.post(t, compress(marshal(t, request(20_000, 10))))
			assert.Equal(t, http.StatusNoContent, status, text)
		})
	}
}

// TestSlowSendersHaveNoLargeBuffers: those that other requests leave behind, and that
// nobody counts any more.
func TestSlowSendersHaveNoLargeBuffers(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Dedup.Entries = 0 })
	large := new(prompb.WriteRequest)
	for i := range 60 { // 3.6 MB, and 180 KB as they are sent
		large.Timeseries = append(large.Timeseries, oneSeries("__name__", "m", "i", strconv.Itoa(i), "l", strings.Repeat("x", 60_000)).Timeseries...)
	}
	body := marshal(t, large)
	d.receiver.topics.stage = func(*sink, context.Context, []messaging.Record) (bool, error) { return true, nil } // keeps nothing
	began := live()
	const slow = 20
	for i := range slow {
		status, text, _ := d.post(t, compress(body))
		require.Equal(t, http.StatusNoContent, status, text)
		d.dial(t, head+"Content-Length: 10000\r\n\r\n")
		require.Eventually(t, func() bool { return d.receiver.budget.Used() == int64(i+1)*leastRead }, 5*time.Second, time.Millisecond)
	}
	assert.Less(t, live()-began, int64(slow<<20))
}

// live is the memory in use, in bytes.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestEncodingStopsAtWhatIsHeld: no format's messages may take more than estimated
// without reserving it.
func TestEncodingStopsAtWhatIsHeld(t *testing.T) {
	escaped := oneSeries("__name__", "m")
	for i := range 100 {
		escaped.Timeseries[0].Labels = append(escaped.Timeseries[0].Labels, prompb.Label{Name: fmt.Sprintf("l%03d", i), Value: strings.Repeat("\x01", 1000)})
	}
	escaped.Timeseries[0].Samples = make([]prompb.Sample, 200)
	html := oneSeries("__name__", "m", "l", strings.Repeat("<", 50_000))
	html.Timeseries[0].Samples = make([]prompb.Sample, 200)
	exemplars := oneSeries("__name__", "m")
	for range 50 {
		exemplars.Timeseries[0].Exemplars = append(exemplars.Timeseries[0].Exemplars,
			prompb.Exemplar{Labels: []prompb.Label{{Name: "a", Value: strings.Repeat("\x01", 10_000)}}})
	}
	small := new(prompb.WriteRequest)
	for i := range 20_000 {
		small.Timeseries = append(small.Timeseries, oneSeries("__name__", "m", "n", fmt.Sprint(i)).Timeseries...)
	}
	for kind, req := range map[string]*prompb.WriteRequest{"escaped": escaped, "html": html, "exemplars": exemplars, "small": small} {
		for _, format := range formats() {
			t.Run(kind+", "+format.name, func(t *testing.T) {
				encode := func(limit int64) (*outgoing, *batch) {
					b := new(batch)
					require.NoError(t, decodeV1(b, marshal(t, req), testLimits()))
					bad, _ := b.validate(testLimits(), nil)
					require.Zero(t, bad.counts.series)
					out := &outgoing{held: door.NewBudget(limit, 1, prometheus.NewGauge(prometheus.GaugeOpts{})).Hold("")}
					format.encode(b, out)
					return out, b
				}
				whole, _ := encode(1 << 40)
				require.NoError(t, whole.err)
				assert.GreaterOrEqual(t, whole.held.Bytes(), int64(whole.size()))
				assert.LessOrEqual(t, whole.held.Bytes(), int64(whole.size()+2*reserveStep))

				out, b := encode(1)
				assert.Equal(t, http.StatusRequestEntityTooLarge, statusOf(t, out.err))
				longest := 0
				for _, r := range whole.records {
					longest = max(longest, len(r.Key)+len(r.Payload))
				}
				assert.LessOrEqual(t, len(out.arena), longest, "it stops behind the first message")
				assert.LessOrEqual(t, cap(out.arena), 2*(format.size(b)+longest)+4096)
			})
		}
	}
}
