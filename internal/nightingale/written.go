package nightingale

import (
	"net/http"
	"strconv"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// setWrittenHeaders sets the response headers of version 2, which say how many samples of each kind
// were written. Senders compare them with what they have sent, and report the rest as lost. So
// samples that the configuration filters out, or that were written before, count as written.
func setWrittenHeaders(header http.Header, c batch.Counts) {
	header.Set("X-Prometheus-Remote-Write-Samples-Written", strconv.Itoa(c.Samples))
	header.Set("X-Prometheus-Remote-Write-Histograms-Written", strconv.Itoa(c.Histograms))
	header.Set("X-Prometheus-Remote-Write-Exemplars-Written", strconv.Itoa(c.Exemplars))
}
