package messaging

import "github.com/prometheus/client_golang/prometheus"

// Readers opens readers, and looks at the ends of topics.
type Readers struct {
	*Cluster

	metrics readerMetrics
	waits   waits
}

// NewReaders opens none yet: see Open.
func NewReaders(c *Cluster, reg prometheus.Registerer) *Readers {
	return &Readers{Cluster: c, metrics: newReaderMetrics(reg), waits: defaultWaits()}
}
