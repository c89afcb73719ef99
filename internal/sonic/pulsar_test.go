package sonic

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/setup"
)

// A zone that is alone needs its topic, but not in front of a Redis Cluster.
func TestSetupOfOneZone(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	all, err := Setup(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Equal(t, "public/default", all[0].Namespaces[0].Name)
	assert.Equal(t, []setup.Topic{{Path: "topic", Name: "persistent://public/default/sonic-default-0", WhyNoPartitions: "the effects of a zone have one order"}}, all[0].Topics)
	assert.Empty(t, all[0].Notes)

	cfg.Redis.Cluster = true
	all, err = Setup(t.Context(), cfg)
	require.NoError(t, err)
	assert.Empty(t, all)
	cfg.Zones = []string{"default", "other"}
	all, err = Setup(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, all, 1)
	assert.Len(t, all[0].Topics, 2)
	assert.Equal(t, []string{"setup.clusters is empty: the replication of the namespace is not checked"}, all[0].Notes)
}
