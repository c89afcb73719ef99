package setup_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/stack"
)

// An admin of a tenant can set up all but the tenant itself, and another role nothing.
func TestWithoutSuperuser(t *testing.T) {
	t.Parallel()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	token := func(role string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"`+role+`"}`))
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	srv := stack.PrivatePulsar(t, stack.Token(token("admin")), stack.Memory("-Xms128m -Xmx512m -XX:MaxDirectMemorySize=256m"), stack.Conf(map[string]string{
		"authenticationEnabled":                "true",
		"authenticationProviders":              "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
		"tokenSecretKey":                       "data:;base64," + base64.StdEncoding.EncodeToString(key),
		"authorizationEnabled":                 "true",
		"superUserRoles":                       "admin",
		"brokerClientAuthenticationPlugin":     "org.apache.pulsar.client.impl.auth.AuthenticationToken",
		"brokerClientAuthenticationParameters": "token:" + token("admin"),
	}))
	t.Cleanup(func() { assert.NoError(t, srv.Kill()) }) // nobody needs its orderly end, which takes seconds
	w := full(t, srv)
	as := func(role string) { w.Pulsar.Auth.Token = secret.String(token(role)) }
	as("owner")
	text, _, err := w.run(true)
	require.Contains(t, text, "  tenant TENANT: not known, because this role may not look at it\n+ namespace TENANT/n\n")
	require.ErrorContains(t, err, "create namespace "+w.tenant+"/n: ", "there is no tenant")

	w.admin(http.MethodPut, "tenants/"+w.tenant, map[string]any{"allowedClusters": []string{"standalone"}, "adminRoles": []string{"owner"}})
	as("other")
	_, _, err = w.run(true)
	require.ErrorIs(t, err, messaging.ErrAuthorization)
	as("owner")
	require.Contains(t, w.apply(), "  pulsar.admin_url ADMIN\n+ namespace TENANT/n\n")

	// The role may not ask for the cluster's name: a new namespace stays in its cluster.
	w.admin(http.MethodPut, "clusters/elsewhere", map[string]any{"serviceUrl": srv.AdminURL(), "brokerServiceUrl": srv.URL()})
	w.admin(http.MethodPost, "tenants/"+w.tenant, map[string]any{"allowedClusters": []string{"standalone", "elsewhere"}, "adminRoles": []string{"owner"}})
	w.Namespaces, w.Topics = []setup.Namespace{{Name: w.tenant + "/two", Clusters: []string{"elsewhere"}}}, nil
	require.Contains(t, w.apply(), "+ namespace TENANT/two: clusters: elsewhere\n")
	var clusters []string
	require.NoError(t, srv.Admin(t.Context(), http.MethodGet, "/admin/v2/namespaces/"+w.tenant+"/two/replication", nil, &clusters))
	require.ElementsMatch(t, []string{"standalone", "elsewhere"}, clusters)
	w.admin(http.MethodPost, "namespaces/"+w.tenant+"/two/replication", []string{"standalone"}) // without it the tenant cannot be deleted
}
