package store

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// What does not succeed for long is said again each minute, with how long it has been so.
func TestAnOutageIsSaidAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		began := time.Now()
		require.NoError(t, retryForever(t.Context(), zap.New(core), "find it", nil, func() error {
			if time.Since(began) < 5*time.Minute {
				return errors.New("connection refused")
			}
			return nil
		}))
		lines := logs.FilterMessage("cannot find it yet, will keep trying").All()
		assert.InDelta(t, 5, len(lines), 1)
		last := lines[len(lines)-1].ContextMap()
		assert.Equal(t, "connection refused", last["error"])
		assert.GreaterOrEqual(t, last["for"], 3*time.Minute)
	})
}
