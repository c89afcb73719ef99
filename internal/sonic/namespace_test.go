package sonic

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestNamespaceWithoutDeduplication(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	ctx := t.Context()
	cfg := DefaultConfig()
	cfg.Pulsar.URL, cfg.Pulsar.AdminURL = pulsar.URL(), pulsar.AdminURL()
	name := pulsar.Namespace(t)
	cfg.Topic = "persistent://" + name + "/sonic"
	client, err := messaging.Dial(ctx, cfg.Pulsar)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	core, logs := observer.New(zap.WarnLevel)

	require.NoError(t, client.Namespace(name).SetDeduplication(ctx, true))
	require.NoError(t, client.Namespace(name).SetRetention(ctx, messaging.Retention{}))
	require.NoError(t, checkNamespace(ctx, client, cfg, zap.New(core)))
	require.Equal(t, 1, logs.Len())
	assert.Contains(t, logs.TakeAll()[0].Message, "no retention")
	require.NoError(t, client.Namespace(name).SetDeduplication(ctx, false))
	require.ErrorIs(t, checkNamespace(ctx, client, cfg, zap.New(core)), errNamespace)

	cfg.Pulsar.AdminURL = ""
	assert.NoError(t, checkNamespace(ctx, client, cfg, zap.New(core)))
}
