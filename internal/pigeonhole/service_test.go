package pigeonhole

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/kafka"
	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
)

// TestPauseSurvivesAReload that changes the route, and one that does not; a route that was not paused runs.
func TestPauseSurvivesAReload(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := &service{log: zap.NewNop(), registerer: registry, metrics: lane.NewMetrics(registry), routes: map[string]*route{}}
	defer func() { require.NoError(t, s.stop(context.WithoutCancel(t.Context()))) }()
	nowhere := func(name string, hops int) RouteConfig {
		var rc RouteConfig
		rc.SetDefaults()
		source, sink := kafka.DefaultSourceConfig(), kafka.DefaultSinkConfig()
		source.Brokers, source.Group, source.Topics = []string{"127.0.0.1:1"}, "g", []string{"t"}
		sink.Brokers = []string{"127.0.0.1:1"}
		rc.Name, rc.To, rc.MaxHops = name, "to", hops
		rc.Source.Kafka, rc.Sink.Kafka = &KafkaSource{source}, &KafkaSink{sink}
		return rc
	}
	reload := func(hops int) {
		cfg := DefaultConfig()
		cfg.Routes = []RouteConfig{nowhere("paused", hops), nowhere("other", hops)}
		require.NoError(t, s.change(t.Context(), cfg))
	}
	reload(8)
	s.find("paused").lanes.Pause()
	for _, hops := range []int{8, 9} {
		reload(hops)
		assert.True(t, s.find("paused").lanes.Paused())
		assert.False(t, s.find("other").lanes.Paused())
		assert.Equal(t, hops, s.find("paused").cfg.MaxHops)
	}
	require.NoError(t, s.resume(s.find("paused")))
	reload(10)
	assert.False(t, s.find("paused").lanes.Paused())
}
