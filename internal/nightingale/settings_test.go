package nightingale

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/rules"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/nightingale/writetest"
)

// TestSettingsChangeWhileTheServiceRuns: quotas, filters and tokens, and nothing of
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
	after.Tenants.Default = Quota{SamplesPerSecond: .001, Burst: 1}
	after.Tenants.InFlightShare = .5
	after.Filter.Drop = make([]rules.Selector, 1)
	require.NoError(t, after.Filter.Drop[0].UnmarshalText([]byte(`{job="b"}`)))
	require.NoError(t, s.receiver.change(before, after))
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

	more := after
	more.Tenants.Default = Quota{}
	more.HTTP.BearerTokens = nil
	more.KeyLabels = []string{} // as good as none
	more.Setup.Partitions = 7   // only -setup uses it
	require.NoError(t, s.receiver.change(after, more))
	require.NoError(t, s.receiver.change(more, after))
	more.Format, more.HTTP.Listen = "packed", "127.0.0.1:1"
	err := s.receiver.change(after, more)
	require.ErrorContains(t, err, "a restart is needed to change http, format:")
	more.Format, more.HTTP.Listen = after.Format, after.HTTP.Listen
	more.HTTP.Senders = []SenderConfig{{Tenant: "kitchen", BearerTokenFile: "/nowhere"}}
	require.ErrorContains(t, s.receiver.change(after, more), "http.senders[0].bearer_token_file: ")
	more.HTTP.Senders, more.HTTP.BearerTokenFile = nil, "/nowhere"
	require.Error(t, s.receiver.change(after, more))
	assert.Equal(t, http.StatusUnauthorized, send(""), "nothing has changed")
	more.HTTP.BearerTokenFile = ""
	require.NoError(t, s.receiver.change(after, more))
	assert.Equal(t, http.StatusNoContent, send(""))
	status, text, _ = s.post(t, writetest.Compress(writetest.Marshal(t, jobs("c"))))
	assert.Equal(t, http.StatusNoContent, status, text)
}

// TestNewQuotasInheritWhatIsLeft: a change of the configuration is no way to a new
// burst.
func TestNewQuotasInheritWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Tenants{Default: Quota{SamplesPerSecond: 1, Burst: 10}, Overrides: map[string]Quota{"own": {SamplesPerSecond: 1, Burst: 10}}, Tracked: 2}
		old := newQuotas(cfg)
		for _, tenant := range []string{"a", "own", "b", "c"} { // c has the rest
			require.NoError(t, spend(old, tenant, 10))
		}
		cfg.Default.Burst = 20
		fresh := newQuotas(cfg)
		fresh.inherit(old)
		for _, tenant := range []string{"a", "own", "b", "c", "d"} {
			require.Error(t, spend(fresh, tenant, 1), tenant)
		}
		<-time.After(10 * time.Second) // the bubble's clock
		for _, tenant := range []string{"a", "own", "b", "c"} {
			require.NoError(t, spend(fresh, tenant, 10), tenant)
		}
	})
}
