package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/config"
)

type nest struct {
	Common `yaml:",inline"`
	Eggs   int `yaml:"eggs"`
}

func nestSpec(environ ...string) config.Spec[nest] {
	return config.Spec[nest]{Name: "nest", Defaults: func() nest { return nest{Common: DefaultCommon("127.0.0.1:0")} }, Environ: environ}
}

// TestStopWaitsForAChange: nothing is closed under a change that goes on, and none begins any more.
func TestStopWaitsForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		var j journal
		var kept *Runtime
		logs, err := run(ctx, func(ctx context.Context, rt *Runtime) error {
			kept = rt
			rt.config.Store(any(nestSpec().Defaults()))
			go reload(ctx, rt, nestSpec()) // waits for the end of the start
			rt.OnStop("client", j.closer("client"))
			OnReload(rt, func(ctx context.Context, _ nest) error {
				j.note("change begins")
				<-ctx.Done()
				<-time.After(10 * time.Second)
				j.note("change given up")
				return ctx.Err()
			})
			rt.Go("http", j.actor("http", 0))
			<-time.After(time.Second)
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []string{"change begins", "change given up", "http told", "http done", "client closed"}, j.lines)
		assert.Equal(t, 1, logs.FilterMessage("configuration not changed: the process stops").Len())
		reload(ctx, kept, nestSpec())
		assert.Len(t, j.lines, 5)
	})
}

// TestAChangeThatHangsDoesNotKeepTheOthersFromTheirStop: they have half of the time left.
func TestAChangeThatHangsDoesNotKeepTheOthersFromTheirStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		release := make(chan struct{})
		defer close(release)
		var j journal
		_, err := run(ctx, func(ctx context.Context, rt *Runtime) error {
			rt.config.Store(any(nestSpec().Defaults()))
			OnReload(rt, func(context.Context, nest) error { <-release; return nil })
			go reload(ctx, rt, nestSpec())
			rt.OnStop("client", j.closer("client"))
			rt.Go("http", j.actor("http", 0))
			return nil
		})
		require.EqualError(t, err, "the change of the configuration has not ended within 15s")
		assert.Equal(t, []string{"http told", "http done", "client closed"}, j.lines)
	})
}

// TestConfigurationInForce: what only a start takes over is shown as it was, and said.
func TestConfigurationInForce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	rt := newRuntime("nest", zap.New(core), time.Second)
	close(rt.built)
	rt.config.Store(any(nestSpec().Defaults()))
	var given nest
	OnReload(rt, func(_ context.Context, cfg nest) error { given = cfg; return nil })
	reload(t.Context(), rt, nestSpec("NEST_EGGS=3", "NEST_ADMIN_LISTEN=127.0.0.1:1", "NEST_SHUTDOWN_TIMEOUT=1h"))
	want := nestSpec().Defaults()
	want.Eggs = 3
	assert.Equal(t, want, rt.config.Load())
	assert.Equal(t, want, given)
	said := logs.FilterMessage("some keys take effect at the next start").All()
	require.Len(t, said, 1)
	assert.Equal(t, []any{"admin", "shutdown_timeout"}, said[0].ContextMap()["keys"])
	reload(t.Context(), rt, nestSpec("NEST_EGGS=4"))
	assert.Equal(t, 1, logs.FilterMessage("some keys take effect at the next start").Len())
	assert.Equal(t, 2, logs.FilterMessage("configuration changed").Len())

	given = nest{}
	reload(t.Context(), rt, nestSpec("NEST_EGGS=4"))
	assert.Equal(t, 1, logs.FilterMessage("configuration read again: no key has changed").Len())
	assert.Equal(t, 2, logs.FilterMessage("configuration changed").Len())
	assert.Equal(t, 4, given.Eggs, "the service may read files again")
	reload(t.Context(), rt, nestSpec("NEST_EGGS=4", "NEST_SHUTDOWN_TIMEOUT=1h"))
	assert.Equal(t, 2, logs.FilterMessage("some keys take effect at the next start").Len())
	assert.Equal(t, 2, logs.FilterMessage("configuration changed").Len(), "nothing was taken over")
	assert.Equal(t, 1, logs.FilterMessage("configuration read again: no key has changed").Len())
}
