package read

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

// Readers opens readers, and looks at the ends of topics.
type Readers struct {
	*cluster.Cluster

	metrics readerMetrics
	Waits   waits
}

// NewReaders opens none yet: see Open.
func NewReaders(c *cluster.Cluster, reg prometheus.Registerer) *Readers {
	return &Readers{Cluster: c, metrics: newMetrics(reg), Waits: defaultWaits()}
}
