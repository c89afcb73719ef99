package eventbridge_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
)

// runWithoutPulsar runs a command while Pulsar is unavailable. before is called with what ends it.
func runWithoutPulsar(t *testing.T, change func(*eventbridge.Config), before func(stop context.CancelFunc) *zap.Logger) error {
	t.Helper()
	cfg := eventbridge.DefaultConfig()
	cfg.Pulsar.URL, cfg.Admin.Listen = "pulsar://127.0.0.1:1", "127.0.0.1:0"
	cfg.Secrets.KeyFile = keyFile(t)
	change(&cfg)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	return app.RunProgram(ctx, app.Program[eventbridge.Config]{Name: "eventbridge", Build: eventbridge.Build}, cfg, before(stop))
}

// Commands end by themselves while Pulsar is unavailable, and say why: nobody may watch them.
func TestCommandsEndWhilePulsarIsUnavailable(t *testing.T) {
	t.Parallel()
	for command, change := range map[string]func(*eventbridge.Config){
		"-export -":            func(cfg *eventbridge.Config) { cfg.Export = "-" },
		"-import missing.yaml": func(cfg *eventbridge.Config) { cfg.Import = "missing.yaml" },
		"-reencrypt":           func(cfg *eventbridge.Config) { cfg.Reencrypt = true },
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			err := runWithoutPulsar(t, func(cfg *eventbridge.Config) {
				cfg.Timeout = 2 * time.Second
				change(cfg)
			}, func(context.CancelFunc) *zap.Logger { return zap.NewNop() })
			require.ErrorContains(t, err, command+": the registry could not be read within 2s (-timeout): ")
			assert.ErrorContains(t, err, "connection refused")
		})
	}
}

// A command that is stopped was not done, which its exit status says.
func TestACommandThatIsStoppedFails(t *testing.T) {
	t.Parallel()
	err := runWithoutPulsar(t, func(cfg *eventbridge.Config) { cfg.Export, cfg.Timeout = "-", time.Hour }, func(stop context.CancelFunc) *zap.Logger {
		return zap.NewExample(zap.Hooks(func(entry zapcore.Entry) error {
			if entry.Level == zap.WarnLevel { // it waits for Pulsar
				stop()
			}
			return nil
		}))
	})
	require.ErrorContains(t, err, "-export -: interrupted before it was done")
}
