package httpserver

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// TestBodiesAreReadWhateverTheirLength: around the steps in which memory is reserved.
func TestBodiesAreReadWhateverTheirLength(t *testing.T) {
	b := admission.NewBudget(1<<20, 1, prometheus.NewGauge(prometheus.GaugeOpts{}))
	for _, length := range []int{1, firstRead - 1, firstRead, firstRead + 1, 2 * firstRead, 5*firstRead + 3} {
		for _, chunked := range []bool{false, true} {
			text := strings.Repeat("x", length)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(text))
			require.NoError(t, err)
			if chunked {
				req.ContentLength = -1
			}
			held := b.Hold("")
			got, err := ReadBody(nil, req, nil, held, BodyLimits{Bytes: 1 << 20})
			require.NoError(t, err)
			assert.Equal(t, text, string(got))
			assert.GreaterOrEqual(t, held.Bytes(), int64(length))
			assert.LessOrEqual(t, held.Bytes(), max(2*int64(length), firstRead))
			held.Release()
			_, err = ReadBody(nil, req, nil, held, BodyLimits{Bytes: int64(length) - 1, Reason: "long"})
			if length > 1 && !chunked {
				refused := (*refusal.Error)(nil)
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, "long", refused.Reason)
			}
			held.Release()
		}
	}
	assert.Zero(t, b.Used())
}
