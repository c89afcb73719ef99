package nightingale

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestRefusalsAreLogged: each reason, and none more often than its interval allows.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		l := newRefusalLog(zap.New(core))
		r := &http.Request{Header: http.Header{"X-Scope-Orgid": {"kitchen"}}, RemoteAddr: "127.0.0.1:1"}
		for range 100 {
			l.note(r, invalid("one", "the first reason").(*refusal)) //nolint:errorlint,forcetypeassert // it is one
			l.note(r, invalid("two", "another").(*refusal))          //nolint:errorlint,forcetypeassert // it is one
			l.note(r, errDisconnected)
		}
		require.Equal(t, 3, logs.Len())
		first := logs.All()[0]
		assert.Equal(t, "refused a request: one", first.Message)
		assert.Equal(t, zap.WarnLevel, first.Level)
		assert.Equal(t, map[string]any{"status": int64(400), "text": "the first reason", "tenant": "kitchen", "sender": "127.0.0.1:1"}, first.ContextMap())
		assert.Equal(t, zap.DebugLevel, logs.All()[2].Level)
		<-time.After(refusalInterval) // the bubble's clock
		l.note(r, errDisconnected)
		assert.Equal(t, 4, logs.Len())
	})
}

// TestWriteLogsWhatItRefuses: of a request that can be read in part, and of one
// without a token.
func TestWriteLogsWhatItRefuses(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := serveDouble(t, func(c *Config) { c.HTTP.BearerTokens = append(c.HTTP.BearerTokens, "first") })
	s.receiver.refusals = newRefusalLog(zap.New(core))
	status, _, err := s.send(t, new(http.Client), "http://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, status)
	status, _, _ = s.post(t, compress(marshal(t, oneSeries("a", "b"))))
	assert.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, 2, logs.Len())
	assert.Equal(t, "refused a request: unauthorized", logs.All()[0].Message)
	assert.Equal(t, "refused a request: invalid_series", logs.All()[1].Message)
	assert.Contains(t, logs.All()[1].ContextMap()["text"], "no metric name")
}
