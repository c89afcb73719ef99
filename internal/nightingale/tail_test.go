package nightingale

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/tail"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTailRunsBesideAReceiver(t *testing.T) {
	loaded, err := config.Load(config.Spec[Config]{
		Name: "nightingale", Defaults: DefaultConfig, Flags: Flags, Usage: new(bytes.Buffer),
		Args: []string{"-tail", "-tail.topic", "persistent://a/b/c"}, Environ: []string{"NIGHTINGALE_ADMIN_LISTEN=127.0.0.1:9202"},
	})
	require.NoError(t, err)
	assert.True(t, loaded.Config.Tail)
	assert.Equal(t, "persistent://a/b/c", loaded.Config.TailTopic)
	assert.Equal(t, "127.0.0.1:0", loaded.Config.Admin.Listen)
	cfg := tail.ConsumerConfig("persistent://a/b/c")
	assert.False(t, cfg.Durable)
	require.NoError(t, cfg.Validate())
}

// TestTailEndsWithItsReader: that is how "-tail | head" ends.
func TestTailEndsWithItsReader(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	cfg := DefaultConfig()
	cfg.Admin.Listen = "127.0.0.1:0"
	program := app.Program[Config]{Name: "nightingale", Build: func(_ context.Context, rt *app.Runtime, _ Config) error {
		tail.Start(rt, w, func(ctx context.Context, h messaging.Handler) error {
			require.NoError(t, h(ctx, &messaging.Delivery{Payload: []byte("x")}))
			<-ctx.Done()
			return nil
		})
		return nil
	}}
	require.NoError(t, app.RunProgram(t.Context(), program, cfg, zap.NewNop()))
	require.NoError(t, w.Close())
}
