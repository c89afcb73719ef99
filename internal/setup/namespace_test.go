package setup_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// The namespace does not exist, and clusters leaves this cluster out: nothing is made.
func TestClustersWithoutThisOne(t *testing.T) {
	t.Parallel()
	geo := stack.Geo(t)
	w := newFixture(t, geo.A)
	w.admin(http.MethodPut, "tenants/"+w.tenant, map[string]any{"allowedClusters": []string{"zone-a", "zone-b"}})
	w.Namespaces = []setup.Namespace{{Name: w.tenant + "/n", Clusters: []string{"zone-b"}}}
	w.Topics = []setup.Topic{{Path: "topic", Name: w.topic("plain")}}
	w.Namespaces[0].Path = "some.key"
	_, _, err := w.run(true)
	require.ErrorContains(t, err, "some.key: setup.clusters lacks zone-a, the cluster of this admin_url")
	var namespaces []string
	require.NoError(t, geo.A.Admin(t.Context(), http.MethodGet, "/admin/v2/namespaces/"+w.tenant, nil, &namespaces))
	require.Empty(t, namespaces)
}

// The plan says that Pulsar will refuse it: the quota that is there is above the new retention.
func TestRetentionBelowTheQuotaThatIsThere(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	w.Namespaces[0].BacklogQuota = setup.BacklogQuota{Policy: messaging.HoldProducers}
	w.Namespaces[0].Retention = setup.Retention{Time: time.Hour, Bytes: 100 * config.MiB}
	text, changes, err := w.run(false)
	require.ErrorContains(t, err, "would have retention 1h0m0s, 100MiB and backlog quota 512MiB, producer_request_hold: Pulsar wants a quota below the size")
	require.Zero(t, changes, text)

	// The other way round: the new quota is above the retention that is there.
	w.Namespaces[0].Retention, w.Namespaces[0].BacklogQuota.Bytes = setup.Retention{}, config.GiB
	_, _, err = w.run(false)
	require.ErrorContains(t, err, "would have retention 24h0m0s, 1GiB and backlog quota 1GiB, producer_request_hold")
	w.Namespaces[0].BacklogQuota.Bytes--
	w.apply()
}

// Backlogs are evicted in the namespace of a service that must not lose any.
func TestEvictionThatIsThere(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	w.admin(http.MethodPost, "namespaces/"+w.tenant+"/n/backlogQuota", map[string]any{"limitSize": 1 << 20, "policy": "consumer_backlog_eviction"})
	w.Namespaces[0].Policies = setup.Defaults() // as the defaults of Sonic and Eventbridge
	text, changes, err := w.run(false)
	require.NoError(t, err)
	require.Zero(t, changes)
	require.Contains(t, text, "  namespace TENANT/n: backlog quota: 1MiB, consumer_backlog_eviction: messages can be lost\n")
	require.NotContains(t, text, "retention")

	// A service that needs retention, in a namespace without.
	w.Namespaces[0].NeedsRetention = true
	w.admin(http.MethodDelete, "namespaces/"+w.tenant+"/n/retention", nil)
	text, changes, err = w.run(false)
	require.NoError(t, err)
	require.Zero(t, changes)
	require.Contains(t, text, "  namespace TENANT/n: retention: not set, and the service needs it: set setup.retention\n")
}
