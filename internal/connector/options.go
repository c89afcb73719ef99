package connector

import (
	"cmp"
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options are what a source or sink needs besides its configuration. The zero value works.
type Options struct {
	// Default: nothing is logged.
	Log *zap.Logger
	// Report is called with an error when the source or sink becomes unhealthy or its error
	// changes, and with nil when it is healthy again. Calls come one at a time and must not block.
	// Default: nothing is reported.
	Report func(error)
	// Default: metrics are not exported.
	Metrics *PartMetrics
	// Registerer is for the metrics of the Pulsar client, which have no label route. Default: they
	// are not exported.
	Registerer prometheus.Registerer
	// DrainContext ends when a stop must not wait any longer for messages in flight, whatever the
	// section's timeouts say. Default: never.
	DrainContext context.Context
}

// WithDefaults returns the options with defaults for the missing ones.
func (o Options) WithDefaults() Options {
	o.Log = cmp.Or(o.Log, zap.NewNop())
	if o.Report == nil {
		o.Report = func(error) {}
	}
	o.Metrics = cmp.Or(o.Metrics, NewMetrics(prometheus.NewRegistry()).Part("", ""))
	o.Registerer = cmp.Or[prometheus.Registerer](o.Registerer, prometheus.NewRegistry())
	o.DrainContext = cmp.Or(o.DrainContext, context.Background())
	return o
}
