package messaging_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTenantIsCreated(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	own, err := m.client.ClusterName(ctx)
	require.NoError(t, err)
	require.Equal(t, "standalone", own)
	clusters, err := m.client.Clusters(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"standalone"}, clusters)

	name := strings.TrimPrefix(m.ns, "public/")
	tenant := m.client.Tenant(name)
	_, err = tenant.AllowedClusters(ctx)
	require.ErrorIs(t, err, messaging.ErrNotFound)
	require.ErrorIs(t, m.client.Namespace(name+"/n").Create(ctx), messaging.ErrNotFound)
	require.NoError(t, tenant.Create(ctx, clusters))
	t.Cleanup(func() {
		assert.NoError(t, m.srv.Admin(context.Background(), http.MethodDelete, "/admin/v2/tenants/"+name, nil, nil))
	})
	require.ErrorIs(t, tenant.Create(ctx, clusters), messaging.ErrExists)
	allowed, err := tenant.AllowedClusters(ctx)
	require.NoError(t, err)
	require.Equal(t, clusters, allowed)
	require.ErrorContains(t, tenant.SetAllowedClusters(ctx, []string{"standalone", "elsewhere"}), "Clusters do not exist")
	require.ErrorContains(t, m.client.Tenant("a/b").Create(ctx, clusters), "must be the name of a tenant")
}

func TestNamespaceIsCreatedWithPolicies(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	require.ErrorIs(t, m.client.Namespace(m.ns).Create(ctx), messaging.ErrExists)
	ns := m.client.Namespace(m.ns + "-created")
	_, err := ns.ReplicationClusters(ctx)
	require.ErrorIs(t, err, messaging.ErrNotFound)
	require.NoError(t, ns.Create(ctx))
	t.Cleanup(func() {
		assert.NoError(t, m.srv.Admin(context.Background(), http.MethodDelete, "/admin/v2/namespaces/"+ns.Name(), nil, nil))
	})
	clusters, err := ns.ReplicationClusters(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"standalone"}, clusters)
	require.ErrorContains(t, ns.SetReplicationClusters(ctx, []string{"standalone", "elsewhere"}), "Invalid cluster id")
	require.NoError(t, ns.SetReplicationClusters(ctx, clusters))

	_, set, err := ns.BacklogQuota(ctx)
	require.NoError(t, err)
	require.False(t, set)
	want := messaging.BacklogQuota{Bytes: 1 << 30, Policy: messaging.RefuseProducers}
	require.NoError(t, ns.SetBacklogQuota(ctx, want))
	quota, set, err := ns.BacklogQuota(ctx)
	require.NoError(t, err)
	require.True(t, set)
	require.Equal(t, want, quota)
	require.Error(t, ns.SetBacklogQuota(ctx, messaging.BacklogQuota{Bytes: -1}))

	_, set, err = ns.SubscriptionExpiration(ctx)
	require.NoError(t, err)
	require.False(t, set)
	require.NoError(t, ns.SetSubscriptionExpiration(ctx, 90*time.Second))
	after, set, err := ns.SubscriptionExpiration(ctx)
	require.NoError(t, err)
	require.True(t, set)
	require.Equal(t, 2*time.Minute, after)
}

func TestPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 2)
	ctx := testContext(t)
	require.NoError(t, m.SetPartitions(ctx, 4))
	require.NoError(t, m.SetPartitions(ctx, 4), "it has as many")
	n, err := m.Partitions(ctx)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.ErrorIs(t, m.SetPartitions(ctx, 3), messaging.ErrExists)
	require.ErrorIs(t, m.client.Topic(m.srv.Topic(t, m.ns, 0)).SetPartitions(ctx, 3), messaging.ErrExists)
	require.ErrorIs(t, m.client.Topic("persistent://"+m.ns+"/missing").SetPartitions(ctx, 3), messaging.ErrExists)
}
