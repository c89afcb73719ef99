package app

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// An outage is in the log without anybody asking for readiness: at its begin, each minute, and at
// its end.
func TestTheLogTellsOfReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		var unavailable atomic.Bool
		rt := newRuntime("test", zap.New(core), time.Second)
		rt.Check("pulsar", func(context.Context) error {
			if unavailable.Load() {
				return errors.New("connection refused")
			}
			return nil
		})
		rt.Check("other", func(context.Context) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- rt.run(ctx, func(context.Context) error { return nil }) }()
		time.Sleep(time.Minute)
		assert.Empty(t, logs.TakeAll(), "all is well")

		unavailable.Store(true)
		time.Sleep(6 * time.Second)
		said := logs.TakeAll()
		require.Len(t, said, 1)
		assert.Equal(t, "readiness", said[0].LoggerName)
		assert.Equal(t, map[string]any{"check": "pulsar", "error": "connection refused"}, said[0].ContextMap())
		time.Sleep(2 * time.Minute)
		assert.Equal(t, 2, logs.FilterMessage("unhealthy, will keep trying").Len())
		logs.TakeAll()

		unavailable.Store(false)
		time.Sleep(6 * time.Second)
		assert.Equal(t, 1, logs.FilterMessage("recovered").Len())
		cancel()
		require.NoError(t, <-ended)
	})
}
