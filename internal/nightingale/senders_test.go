package nightingale

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// TestSendersAreBoundToTenants: by their token or their user, whatever header they
// send; others are free to name a tenant.
func TestSendersAreBoundToTenants(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"web.yml": "basic_auth_users: {waiter: '" + waiterPassword + "', cook: '" + waiterPassword + "'}\n",
		"tokens":  "bar-1\nbar-2\n",
	})
	for name, config := range map[string]tenant.AccessConfig{
		"tokens": {
			BearerTokens: []secret.String{"any"},
			Senders:      []tenant.SenderConfig{{Tenant: "kitchen", BearerTokens: []secret.String{"k1", "k2"}}, {Tenant: "bar", BearerTokenFile: filepath.Join(dir, "tokens")}},
		},
		"users": {WebConfigFile: filepath.Join(dir, "web.yml"), Senders: []tenant.SenderConfig{{Tenant: "kitchen", BasicAuthUsers: []string{"cook"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveDouble(t, func(c *Config) {
				c.HTTP.AccessConfig, c.Dedup.Entries = config, 0 // each is published
			})
			for _, test := range []struct {
				config, who, tenant string
				status              int
				as                  string
			}{
				{"tokens", "k1", "", 204, "kitchen"},
				{"tokens", "k2", "kitchen", 204, "kitchen"},
				{"tokens", "k1", "bar", 403, ""},
				{"tokens", "k1", "Kitchen", 403, ""},
				{"tokens", "k1", "a/b", 400, ""},
				{"tokens", "bar-2", "", 204, "bar"},
				{"tokens", "bar-1", "kitchen", 403, ""},
				{"tokens", "any", "kitchen", 204, "kitchen"},
				{"tokens", "any", "", 204, ""},
				{"tokens", "k3", "kitchen", 401, ""},
				{"users", "cook", "", 204, "kitchen"},
				{"users", "cook", "bar", 403, ""},
				{"users", "waiter", "bar", 204, "bar"},
				{"users", "guest", "kitchen", 401, ""},
			} {
				if test.config != name {
					continue
				}
				before := len(s.published())
				status, header, err := s.send(t, new(http.Client), "http://", func(r *http.Request) {
					if r.Header.Set("Authorization", "Bearer "+test.who); name == "users" {
						r.SetBasicAuth(test.who, "fly")
					}
					if test.tenant != "" {
						r.Header.Set(tenant.Header, test.tenant)
					}
				})
				require.NoError(t, err)
				assert.Equal(t, test.status, status, "%+v", test)
				assert.Equal(t, status == http.StatusUnauthorized, header.Get("WWW-Authenticate") != "", "%+v", test)
				if status != http.StatusNoContent {
					assert.Len(t, s.published(), before, "%+v", test)
					continue
				}
				s.mu.Lock()
				assert.Equal(t, tenant.Properties(test.as), s.records[len(s.records)-1].Properties, "%+v", test)
				s.mu.Unlock()
			}
		})
	}
}

// TestABoundSenderCannotNameTwoTenants: a proxy may take the one, and we the other.
func TestABoundSenderCannotNameTwoTenants(t *testing.T) {
	s := serveDouble(t, func(c *Config) {
		c.HTTP.Senders = []tenant.SenderConfig{{Tenant: "kitchen", BearerTokens: []secret.String{"k"}}}
	})
	status, _, err := s.send(t, new(http.Client), "http://", func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer k")
		r.Header[http.CanonicalHeaderKey(tenant.Header)] = []string{"kitchen", "bar"}
	})
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Empty(t, s.published())
}

// TestBindingsThatContradictOneAnother are faults of the later key, whose token is
// not shown.
func TestBindingsThatContradictOneAnother(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"web.yml": "basic_auth_users: {cook: '" + waiterPassword + "'}\n", "a": "swordfish\n", "b": "trout\nswordfish\n", "open.yml": "{}\n",
	})
	of := func(name string, tokens ...secret.String) tenant.SenderConfig {
		return tenant.SenderConfig{Tenant: name, BearerTokens: tokens}
	}
	for want, c := range map[string]tenant.AccessConfig{
		"http.senders[1].bearer_tokens[1]: is also a token of http.senders[0].bearer_tokens[0], for another tenant": {
			Senders: []tenant.SenderConfig{of("a", "swordfish"), of("b", "trout", "swordfish")},
		},
		"http.senders[0].bearer_tokens[0]: is also a token of http.bearer_tokens[1], for another tenant": {
			BearerTokens: []secret.String{"trout", "swordfish"}, Senders: []tenant.SenderConfig{of("a", " swordfish ")},
		},
		"http.senders[1].bearer_token_file: is also a token of http.senders[0].bearer_token_file, for another tenant": {
			Senders: []tenant.SenderConfig{{Tenant: "a", BearerTokenFile: filepath.Join(dir, "a")}, {Tenant: "b", BearerTokenFile: filepath.Join(dir, "b")}},
		},
		"http.senders[1].bearer_token_file: cannot read a secret": {
			Senders: []tenant.SenderConfig{of("a", "trout"), {Tenant: "b", BearerTokenFile: filepath.Join(dir, "none")}},
		},
		"http.senders[0].basic_auth_users[1]: is not one of basic_auth_users in http.web_config_file": {
			WebConfigFile: filepath.Join(dir, "web.yml"), Senders: []tenant.SenderConfig{{Tenant: "a", BasicAuthUsers: []string{"cook", "guest"}}},
		},
		"http.senders[0].basic_auth_users[0]: is not one of": {
			WebConfigFile: filepath.Join(dir, "open.yml"), Senders: []tenant.SenderConfig{{Tenant: "a", BasicAuthUsers: []string{"cook"}}},
		},
		"http.web_config_file: has basic_auth_users, which cannot": {
			WebConfigFile: filepath.Join(dir, "web.yml"), Senders: []tenant.SenderConfig{of("a", "trout")},
		},
	} {
		err := c.Check()
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "swordfish")
	}
	for variable, want := range map[string]string{
		"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, bearer_tokens: [swordfish]}, {tenant: b, bearer_tokens: [swordfish]}]":   "http.senders[1].bearer_tokens[0]: is also",
		"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, basic_auth_users: [cook, cook]}, {tenant: b, basic_auth_users: [cook]}]": "http.senders[1].basic_auth_users[0]: is bound to another tenant by senders[0]",
		"NIGHTINGALE_HTTP_SENDERS=a=swordfish":                               "http.senders[0]: must be a mapping of keys, got a single value",
		"NIGHTINGALE_HTTP_SENDERS={swordfish: a}":                            "http.senders: must be a list",
		"NIGHTINGALE_HTTP_SENDERS=[{swordfish: a}]":                          "http.senders[0]",
		"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, bearer_tokens: swordfish}]":   "http.senders[0].bearer_tokens: must be a list",
		"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, bearer_tokens: {swordfish}}]": "http.senders[0].bearer_tokens: must be a list",
	} {
		_, err := load(variable)
		require.ErrorContains(t, err, want, variable)
		assert.NotContains(t, err.Error(), "swordfish", variable)
	}
	_, err := load("NIGHTINGALE_HTTP_SENDERS=[{tenant: a, bearer_tokens: [b]}, {tenant: a, bearer_tokens: [b]}]")
	require.NoError(t, err, "twice the same")
}
