package consume

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
)

// Consumers makes consumers, and has their shared parts.
type Consumers struct {
	*cluster.Cluster

	api        *adminapi.API
	publishers *publish.Publishers // of retries and dead letters
	metrics    consumerMetrics

	// ResubscribeForChunks is the delay from the loss of an incomplete chunked message to the new
	// session. Other chunked messages complete meanwhile, so that the new session can take it.
	ResubscribeForChunks time.Duration
	// AckLanding is in place of [clientquirks.AckLanding], for tests; 0: that.
	AckLanding time.Duration
}

// NewConsumers prepares for New, and registers the metrics.
func NewConsumers(c *cluster.Cluster, api *adminapi.API, publishers *publish.Publishers, reg prometheus.Registerer) *Consumers {
	return &Consumers{
		Cluster: c, api: api, publishers: publishers, metrics: newMetrics(reg), ResubscribeForChunks: time.Minute,
	}
}
