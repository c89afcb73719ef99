package nightingale

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// observeRefusals returns a log of refusals, and what it has written.
func observeRefusals() (refusal.Log, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return refusal.NewLog(zap.New(core)), logs
}

// TestWriteLogsWhatItRefuses: of a request that can be read in part, and of one
// without a token.
func TestWriteLogsWhatItRefuses(t *testing.T) {
	s := serveDouble(t, func(c *Config) { c.HTTP.BearerTokens = append(c.HTTP.BearerTokens, "first") })
	l, logs := observeRefusals()
	s.receiver.refusals = l
	status, _, err := s.send(t, new(http.Client), "http://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, status)
	status, _, _ = s.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries("a", "b"))))
	assert.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, 2, logs.Len())
	assert.Equal(t, "refused a request: unauthorized", logs.All()[0].Message)
	assert.Equal(t, "refused a request: invalid_series", logs.All()[1].Message)
	assert.Contains(t, logs.All()[1].ContextMap()["text"], "no metric name")
}
