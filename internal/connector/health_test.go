package connector_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/connector"
)

func TestHealthReportsWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		h := connector.NewHealth(func(err error) {
			text := "healthy"
			if err != nil {
				text = err.Error()
			}
			reports = append(reports, text)
		})
		next := func() []string {
			got := reports
			reports = nil
			return got
		}
		h.Set(connector.Connection, nil)
		assert.Equal(t, []string{"healthy"}, next(), "the first state, too")
		h.Set("b", errors.New("b"))
		h.Set("b", errors.New("b"))
		h.Set("c", errors.New("c"))
		assert.Equal(t, []string{"b"}, next(), "the first by name, once")
		h.Set(connector.Connection, errors.New("unavailable"))
		time.Sleep(time.Second)
		assert.True(t, h.Unhealthy())
		assert.True(t, h.QuietFor(time.Second))
		assert.False(t, h.QuietFor(2*time.Second))
		h.Set(connector.Connection, nil)
		h.Set("b", nil)
		h.Set("c", nil)
		assert.Equal(t, []string{"unavailable", "b", "c", "healthy"}, next())
		assert.False(t, h.Unhealthy())
		assert.False(t, h.QuietFor(0))
	})
}
