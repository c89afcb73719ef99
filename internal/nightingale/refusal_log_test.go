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

// observeRefusals returns a log of refusals, and what it has written.
func observeRefusals() (refusalLog, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return newRefusalLog(zap.New(core)), logs
}

// TestRefusalsAreLogged: each reason, and none more often than its interval allows.
func TestRefusalsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, logs := observeRefusals()
		r := &http.Request{Header: http.Header{"X-Scope-Orgid": {"kitchen"}}, RemoteAddr: "127.0.0.1:1"}
		all := []*refusal{{status: 400, reason: "one", text: "the first reason"}, {status: 400, reason: "two"}, errDisconnected}
		for range 100 {
			for _, refused := range all {
				l.note(r, refused)
			}
		}
		require.Equal(t, len(all), logs.Len())
		for i, entry := range logs.All() {
			assert.Equal(t, "refused a request: "+all[i].reason, entry.Message)
		}
		first, last := logs.All()[0], logs.All()[2]
		assert.Equal(t, zap.WarnLevel, first.Level)
		assert.Equal(t, map[string]any{"status": int64(400), "text": "the first reason", "tenant": "kitchen", "sender": "127.0.0.1:1"}, first.ContextMap())
		assert.Equal(t, zap.DebugLevel, last.Level)
		<-time.After(refusalInterval) // the bubble's clock
		l.note(r, errDisconnected)
		assert.Equal(t, len(all)+1, logs.Len())
	})
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
	status, _, _ = s.post(t, compress(marshal(t, oneSeries("a", "b"))))
	assert.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, 2, logs.Len())
	assert.Equal(t, "refused a request: unauthorized", logs.All()[0].Message)
	assert.Equal(t, "refused a request: invalid_series", logs.All()[1].Message)
	assert.Contains(t, logs.All()[1].ContextMap()["text"], "no metric name")
}
