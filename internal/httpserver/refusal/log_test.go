package refusal

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
		l := NewLog(zap.New(core))
		r := &http.Request{RemoteAddr: "127.0.0.1:1"}
		all := []*Error{{Status: 400, Reason: "one", Text: "the first reason"}, {Status: 400, Reason: "two"}, ErrDisconnected}
		for range 100 {
			for _, refused := range all {
				l.Write(r, "kitchen", refused)
			}
		}
		require.Equal(t, len(all), logs.Len())
		for i, entry := range logs.All() {
			assert.Equal(t, "refused a request: "+all[i].Reason, entry.Message)
		}
		first, last := logs.All()[0], logs.All()[2]
		assert.Equal(t, zap.WarnLevel, first.Level)
		assert.Equal(t, map[string]any{"status": int64(400), "text": "the first reason", "tenant": "kitchen", "sender": "127.0.0.1:1"}, first.ContextMap())
		assert.Equal(t, zap.DebugLevel, last.Level)
		<-time.After(logInterval) // the bubble's clock
		l.Write(r, "kitchen", ErrDisconnected)
		assert.Equal(t, len(all)+1, logs.Len())
	})
}
