package nightingale

import (
	"net/http"
	"strconv"
)

// tellWritten sets what version 2 has answers say: how much of each kind was
// written. Senders compare it with what they sent and report the rest as lost, so
// what configuration filters out or has seen before counts as written.
func tellWritten(header http.Header, c counts) {
	header.Set("X-Prometheus-Remote-Write-Samples-Written", strconv.Itoa(c.samples))
	header.Set("X-Prometheus-Remote-Write-Histograms-Written", strconv.Itoa(c.histograms))
	header.Set("X-Prometheus-Remote-Write-Exemplars-Written", strconv.Itoa(c.exemplars))
}
