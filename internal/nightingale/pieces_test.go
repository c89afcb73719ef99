package nightingale

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/fakebroker/publishtest"
)

// TestAPieceThatEndsWithAPart: the next part has all of its messages. A piece is published before
// the message behind it is begun, and that can be the first one of the next topic.
func TestAPieceThatEndsWithAPart(t *testing.T) {
	const size, others = 60 << 10, 300
	for n := 134; n < 139; n++ { // 136 messages fill a piece
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := publishtest.NewCluster()
				d := templated(t, c, nil)
				req := repeated(strings.Repeat("x", size))
				req.Timeseries[0].Samples = req.Timeseries[0].Samples[:n]
				req.Timeseries[0].Labels = append(req.Timeseries[0].Labels, prompb.Label{Name: "job", Value: "good"})
				for range others {
					req.Timeseries = append(req.Timeseries, jobs("bad").Timeseries...)
				}
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
				require.Equal(t, http.StatusNoContent, status, text)
				assert.Equal(t, n, c.Count(goodTopic))
				assert.Equal(t, others, c.Count(badTopic))
			})
		})
	}
}
