package messaging

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Consumers makes consumers, and has what they share.
type Consumers struct {
	*Cluster

	api        *API
	publishers *Publishers // of retries and dead letters
	metrics    consumerMetrics

	// resubscribeForChunks is the delay from the loss of an incomplete chunked message to the new
	// session. Other chunked messages complete meanwhile, so that the new session has room for it.
	resubscribeForChunks time.Duration
}

// NewConsumers makes none yet: see New.
func NewConsumers(c *Cluster, api *API, publishers *Publishers, reg prometheus.Registerer) *Consumers {
	return &Consumers{
		Cluster: c, api: api, publishers: publishers, metrics: newConsumerMetrics(reg), resubscribeForChunks: time.Minute,
	}
}
