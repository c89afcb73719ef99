package consume

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
)

// openConsumers makes consumers of the cluster at url.
func openConsumers(t testing.TB, url string) *Consumers {
	t.Helper()
	cfg := cluster.DefaultConfig()
	cfg.URL = url
	c, err := cluster.Open(cfg, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	t.Cleanup(func() {
		c.End()
		require.NoError(t, c.Await(context.Background()))
		require.NoError(t, c.Disconnect(context.Background()))
	})
	reg := prometheus.NewRegistry()
	api, err := adminapi.New(c, cfg)
	require.NoError(t, err)
	return NewConsumers(c, api, publish.NewPublishers(c, read.NewReaders(c, reg), reg), reg)
}
