package messaging

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// openConsumers makes consumers of the cluster at url.
func openConsumers(t testing.TB, url string) *Consumers {
	t.Helper()
	cfg := DefaultConfig()
	cfg.URL = url
	c, err := OpenCluster(cfg, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	t.Cleanup(func() {
		c.End()
		require.NoError(t, c.Await(context.Background()))
		require.NoError(t, c.Disconnect(context.Background()))
	})
	reg := prometheus.NewRegistry()
	api, err := NewAPI(c, cfg)
	require.NoError(t, err)
	return NewConsumers(c, api, NewPublishers(c, NewReaders(c, reg), reg), reg)
}
