package format

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// TestEncodingStopsAtWhatIsHeld: no format's messages may take more than estimated
// without reserving it.
func TestEncodingStopsAtWhatIsHeld(t *testing.T) {
	escaped := writetest.OneSeries("__name__", "m")
	for i := range 100 {
		escaped.Timeseries[0].Labels = append(escaped.Timeseries[0].Labels, prompb.Label{Name: fmt.Sprintf("l%03d", i), Value: strings.Repeat("\x01", 1000)})
	}
	escaped.Timeseries[0].Samples = make([]prompb.Sample, 20)
	html := writetest.OneSeries("__name__", "m", "l", strings.Repeat("<", 50_000))
	html.Timeseries[0].Samples = make([]prompb.Sample, 20)
	exemplars := writetest.OneSeries("__name__", "m")
	for range 50 {
		exemplars.Timeseries[0].Exemplars = append(exemplars.Timeseries[0].Exemplars,
			prompb.Exemplar{Labels: []prompb.Label{{Name: "a", Value: strings.Repeat("\x01", 10_000)}}})
	}
	small := new(prompb.WriteRequest)
	for i := range 20_000 {
		small.Timeseries = append(small.Timeseries, writetest.OneSeries("__name__", "m", "n", fmt.Sprint(i)).Timeseries...)
	}
	for kind, req := range map[string]*prompb.WriteRequest{"escaped": escaped, "html": html, "exemplars": exemplars, "small": small} {
		body := writetest.Marshal(t, req)
		for _, f := range All() {
			t.Run(kind+", "+f.name, func(t *testing.T) {
				t.Parallel()
				encode := func(limit int64) (*Messages, *batch.Batch) {
					b := new(batch.Batch)
					require.NoError(t, remotewrite.DecodeV1(b, body, remotewrite.DefaultLimits()))
					bad, _ := remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
					require.Zero(t, bad.Counts.Series)
					out := &Messages{held: admission.NewBudget(limit, 1, prometheus.NewGauge(prometheus.GaugeOpts{})).Hold("")}
					f.Encode(b, new(Packing), out)
					return out, b
				}
				whole, _ := encode(1 << 40)
				require.NoError(t, whole.Err)
				assert.GreaterOrEqual(t, whole.held.Bytes(), int64(whole.Size()))
				assert.LessOrEqual(t, whole.held.Bytes(), int64(whole.Size()+2*reserveStep))

				out, b := encode(1)
				assert.Equal(t, http.StatusRequestEntityTooLarge, writetest.StatusOf(t, out.Err))
				longest := 0
				for _, r := range whole.Records {
					longest = max(longest, len(r.Key)+len(r.Payload))
				}
				assert.LessOrEqual(t, len(out.arena), longest, "it stops behind the first message")
				assert.LessOrEqual(t, cap(out.arena), 2*(f.Size(b, new(Packing))+longest)+4096)
			})
		}
	}
}
