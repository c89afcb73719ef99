package nightingale

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// TestSettingsChangeWhileTheServiceRuns: quotas, rules and tokens, and nothing of
// a configuration with a fault.
func TestSettingsChangeWhileTheServiceRuns(t *testing.T) {
	var before Config
	s := serveDouble(t, func(c *Config) { before = *c })
	send := func(token string) int {
		status, _, err := s.send(t, new(http.Client), "http://", func(r *http.Request) {
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
		})
		require.NoError(t, err)
		return status
	}
	assert.Equal(t, http.StatusNoContent, send(""))
	after := before
	after.HTTP.BearerTokens = []secret.String{"first"}
	after.Tenants.Default = tenant.Quota{SamplesPerSecond: .001, Burst: 1}
	after.Tenants.InFlightShare = .5
	after.RelabelConfigs = []relabel.Config{{Action: "drop", SourceLabels: []string{"job"}, Regex: "b", Separator: ";", Replacement: "$1"}}
	require.NoError(t, s.receiver.reload(before, after))
	assert.Equal(t, http.StatusUnauthorized, send(""))
	assert.Equal(t, http.StatusNoContent, send("first"), "the body is known")
	first, second := s.receiver.budget.Hold("a"), s.receiver.budget.Hold("a")
	require.NoError(t, first.Set(s.receiver.budget.Limit()/2))
	require.ErrorContains(t, second.Set(1), "the tenant has too many bytes in flight")
	first.Release()
	status, text, _ := s.post(t, writetest.Compress(writetest.Marshal(t, jobs("b"))))
	assert.Equal(t, http.StatusNoContent, status, text)
	assert.Len(t, s.published(), 1, "the second is dropped")
	status, text, _ = s.post(t, writetest.Compress(writetest.Marshal(t, jobs("c"))))
	assert.Equal(t, http.StatusTooManyRequests, status, text)
	require.NoError(t, s.receiver.reload(after, after))
	status, text, _ = s.post(t, writetest.Compress(writetest.Marshal(t, jobs("d"))))
	assert.Equal(t, http.StatusNoContent, status, "the burst is full again: %s", text)

	more := after
	more.Tenants.Default = tenant.Quota{}
	more.HTTP.BearerTokens = nil
	more.KeyLabels = []string{} // as good as none
	more.Setup.Partitions = 7   // only -setup uses it
	require.NoError(t, s.receiver.reload(after, more))
	require.NoError(t, s.receiver.reload(more, after))
	more.Format, more.HTTP.Listen = "packed", "127.0.0.1:1"
	err := s.receiver.reload(after, more)
	require.ErrorContains(t, err, "a restart is needed to change http, format:")
	more.Format, more.HTTP.Listen = after.Format, after.HTTP.Listen
	more.HTTP.Senders = []tenant.SenderConfig{{Tenant: "kitchen", BearerTokenFile: "/nowhere"}}
	require.ErrorContains(t, s.receiver.reload(after, more), "http.senders[0].bearer_token_file: ")
	more.HTTP.Senders, more.HTTP.BearerTokenFile = nil, "/nowhere"
	require.Error(t, s.receiver.reload(after, more))
	assert.Equal(t, http.StatusUnauthorized, send(""), "nothing has changed")
	more.HTTP.BearerTokenFile = ""
	require.NoError(t, s.receiver.reload(after, more))
	assert.Equal(t, http.StatusNoContent, send(""))
	status, text, _ = s.post(t, writetest.Compress(writetest.Marshal(t, jobs("c"))))
	assert.Equal(t, http.StatusNoContent, status, text)
}
