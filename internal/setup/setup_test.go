package setup_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// fixture is a tenant of a Pulsar, which need not exist, and what a service wants there.
type fixture struct {
	t      *testing.T
	srv    *stack.PulsarServer
	tenant string
	setup.Cluster
}

func newFixture(t *testing.T, srv *stack.PulsarServer) *fixture {
	t.Helper()
	w := &fixture{t: t, srv: srv, tenant: "setup-" + strings.ToLower(rand.Text())}
	w.Path, w.Pulsar = "pulsar", messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()}
	t.Cleanup(func() {
		assert.NoError(t, srv.Admin(context.Background(), http.MethodDelete, "/admin/v2/tenants/"+w.tenant+"?force=true", nil, nil))
	})
	return w
}

// full is a want of everything.
func full(t *testing.T, srv *stack.PulsarServer) *fixture {
	t.Helper()
	w := newFixture(t, srv)
	w.Namespaces = []setup.Namespace{{
		Name: w.tenant + "/n", Deduplication: true, KeepSubscriptions: true, Clusters: []string{"standalone"},
		Policies: setup.Policies{
			Retention:    setup.Retention{Time: 24 * time.Hour, Bytes: config.GiB},
			BacklogQuota: setup.BacklogQuota{Bytes: 512 * config.MiB, Policy: messaging.HoldProducers},
		},
	}}
	w.Topics = []setup.Topic{
		{Path: "topic", Name: w.topic("plain"), Subscriptions: map[string]messaging.Position{"keep": {}}},
		{Path: "topic", Name: w.topic("wide"), Partitions: 4},
	}
	w.Notes = []string{"a note"}
	return w
}

func (w *fixture) topic(name string) string { return "persistent://" + w.tenant + "/n/" + name }

// run runs the set-up, and returns what it prints with names that stay.
func (w *fixture) run(apply bool) (text string, changes int, err error) {
	w.t.Helper()
	var out strings.Builder
	changes, err = setup.Run(w.t.Context(), []setup.Cluster{w.Cluster}, apply, "", &out)
	return strings.NewReplacer(w.tenant, "TENANT", w.srv.AdminURL(), "ADMIN").Replace(out.String()), changes, err
}

// apply creates what is wanted, and sees that nothing is left to change.
func (w *fixture) apply() (text string) {
	w.t.Helper()
	text, changes, err := w.run(true)
	require.NoError(w.t, err)
	require.Positive(w.t, changes)
	w.nothingToChange()
	return text
}

func (w *fixture) nothingToChange() {
	w.t.Helper()
	text, changes, err := w.run(false)
	require.NoError(w.t, err)
	require.Zero(w.t, changes, text)
	require.NotRegexp(w.t, `(?m)^[+-]`, text)
}

func (w *fixture) admin(method, path string, in any) {
	w.t.Helper()
	require.NoError(w.t, w.srv.Admin(context.WithoutCancel(w.t.Context()), method, "/admin/v2/"+path, in, nil))
}

const fullPlan = `  pulsar.admin_url ADMIN
+ tenant TENANT: clusters: standalone
+ namespace TENANT/n
+ namespace TENANT/n: clusters: standalone
+ namespace TENANT/n: deduplication: on
+ namespace TENANT/n: subscriptions expire: never
+ namespace TENANT/n: retention: 24h0m0s, 1GiB
+ namespace TENANT/n: backlog quota: 512MiB, producer_request_hold
+ topic persistent://TENANT/n/plain: no partitions
+ topic persistent://TENANT/n/plain: subscription keep
+ topic persistent://TENANT/n/wide: 4 partitions
  a note
`

// A plan changes nothing, and says what is done then.
func TestEmpty(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	for range 2 {
		text, changes, err := w.run(false)
		require.NoError(t, err)
		require.Equal(t, fullPlan, text)
		require.Equal(t, 10, changes)
	}
	require.Equal(t, fullPlan, w.apply())
	text, changes, err := w.run(true)
	require.NoError(t, err)
	require.Zero(t, changes)
	require.Equal(t, `  pulsar.admin_url ADMIN
  namespace TENANT/n
  namespace TENANT/n: clusters: standalone
  namespace TENANT/n: deduplication: on
  namespace TENANT/n: subscriptions expire: never
  namespace TENANT/n: retention: 24h0m0s, 1GiB
  namespace TENANT/n: backlog quota: 512MiB, producer_request_hold
  topic persistent://TENANT/n/plain: no partitions
  topic persistent://TENANT/n/plain: subscription keep
  topic persistent://TENANT/n/wide: 4 partitions
  a note
`, text)
}

// Whatever is there already, the rest is created.
func TestHalfThere(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	w := full(t, srv)
	w.admin(http.MethodPut, "tenants/"+w.tenant, map[string]any{"allowedClusters": []string{"standalone"}})
	text, changes, err := w.run(false)
	require.NoError(t, err)
	require.Equal(t, 9, changes)
	require.Equal(t, strings.Replace(fullPlan, "+ tenant TENANT: clusters: standalone\n", "", 1), text)

	w.admin(http.MethodPut, "namespaces/"+w.tenant+"/n", nil)
	w.admin(http.MethodPut, "persistent/"+w.tenant+"/n/plain", nil)
	text, changes, err = w.run(false)
	require.NoError(t, err)
	require.Equal(t, 6, changes)
	require.Contains(t, text, "  namespace TENANT/n\n  namespace TENANT/n: clusters: standalone\n+ namespace TENANT/n: deduplication: on\n")
	require.Contains(t, text, "  topic persistent://TENANT/n/plain: no partitions\n+ topic persistent://TENANT/n/plain: subscription keep\n+ topic")
	w.apply()
}

func TestDifferent(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	ns := "namespaces/" + w.tenant + "/n/"
	w.admin(http.MethodPost, ns+"deduplication", false)
	w.admin(http.MethodPost, ns+"subscriptionExpirationTime", 90)
	w.Namespaces[0].Retention = setup.Retention{Time: time.Hour}
	w.Namespaces[0].BacklogQuota = setup.BacklogQuota{Bytes: 1024 * config.GiB, Policy: messaging.RefuseProducers}
	w.Topics[1].Partitions = 6
	require.Equal(t, `  pulsar.admin_url ADMIN
  namespace TENANT/n
  namespace TENANT/n: clusters: standalone
- namespace TENANT/n: deduplication: off
+ namespace TENANT/n: deduplication: on
- namespace TENANT/n: subscriptions expire: after 1h30m0s
+ namespace TENANT/n: subscriptions expire: never
- namespace TENANT/n: retention: 24h0m0s, 1GiB
+ namespace TENANT/n: retention: 1h0m0s, any size (smaller: brokers delete what is older)
- namespace TENANT/n: backlog quota: 512MiB, producer_request_hold
+ namespace TENANT/n: backlog quota: 1TiB, producer_exception
  topic persistent://TENANT/n/plain: no partitions
  topic persistent://TENANT/n/plain: subscription keep
- topic persistent://TENANT/n/wide: 4 partitions
+ topic persistent://TENANT/n/wide: 6 partitions
  a note
`, w.apply())

	// Pulsar refuses a retention that is not above the quota: the quota shrinks first.
	w.Namespaces[0].Retention = setup.Retention{Time: time.Hour, Bytes: 100 * config.MiB}
	w.Namespaces[0].BacklogQuota.Bytes = 50 * config.MiB
	require.Regexp(t, `(?s)\+ namespace TENANT/n: backlog quota: 50MiB.*\+ namespace TENANT/n: retention: 1h0m0s, 100MiB`, w.apply())

	// What is not wanted stays as it is.
	w.Namespaces[0] = setup.Namespace{Name: w.Namespaces[0].Name}
	w.Topics = []setup.Topic{{Path: "topic", Name: w.topic("wide"), Partitions: 2, WhyNoGrowth: "of the order"}, {Path: "topic", Name: w.topic("plain")}}
	text, changes, err := w.run(true)
	require.NoError(t, err)
	require.Zero(t, changes)
	require.Contains(t, text, "  topic persistent://TENANT/n/wide: 6 partitions, more than wanted, not changed\n")
}

// What cannot be is an error, and nothing is changed then.
func TestImpossible(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	ways := map[string]setup.Topic{
		"has no partitions and must have 2: partitions cannot be added to such a topic": {Name: w.topic("plain"), Partitions: 2},
		"has 4 partitions and must have 6: partitions cannot be added: of the order":    {Name: w.topic("wide"), Partitions: 6, WhyNoGrowth: "of the order"},
		"has 4 partitions and must have none: of the order":                             {Name: w.topic("wide"), WhyNoPartitions: "of the order"},
	}
	w.Namespaces[0].Retention.Time = time.Hour
	for want, topic := range ways {
		topic.Path = "some.key"
		w.Topics = []setup.Topic{topic}
		for _, apply := range []bool{false, true} {
			text, changes, err := w.run(apply)
			require.ErrorContains(t, err, "some.key: topic "+topic.Name+" "+want)
			require.Equal(t, 1, changes, "of the retention, which is not made")
			require.Contains(t, text, "+ namespace TENANT/n: retention: 1h0m0s, 1GiB (smaller: brokers delete what is older)\n")
		}
	}

	w.Topics = nil
	w.Namespaces[0].Clusters = []string{"standalone", "elsewhere"}
	_, _, err := w.run(true)
	require.ErrorContains(t, err, "lusters do not exist", "of Pulsar")

	unset := w.Cluster
	unset.Pulsar.AdminURL = ""
	var out strings.Builder
	_, err = setup.Run(t.Context(), []setup.Cluster{w.Cluster, unset}, false, "heading\n", &out)
	require.Empty(t, out.String())
	require.EqualError(t, err, "pulsar.admin_url: must be set for -setup and -setup.plan: the address of the brokers' admin API")
}

// A topic of others gets a subscription once it is there.
func TestTopicOfOthers(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	w.Namespaces = nil
	w.Topics = []setup.Topic{
		{Path: "topics", Name: w.topic("missing"), OthersCreateIt: true, Subscriptions: map[string]messaging.Position{"ours": {}}},
		{Path: "topics", Name: w.topic("wide"), OthersCreateIt: true, Subscriptions: map[string]messaging.Position{"ours": messaging.Latest()}},
		{Path: "topics", Name: strings.Replace(w.topic("passing"), "persistent", "non-persistent", 1)},
	}
	text := w.apply()
	require.Contains(t, text, "  topic persistent://TENANT/n/missing: not there yet: no subscription is created\n")
	require.Contains(t, text, "+ topic persistent://TENANT/n/wide: subscription ours\n")
	require.Contains(t, text, "  topic non-persistent://TENANT/n/passing: not created, because it is not persistent\n")
}

// Several instances set up at the same time: all succeed.
func TestSeveralAtOnce(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	for range 5 {
		w := full(t, srv)
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			all.Go(func() { _, _, errs[i] = w.run(true) })
		}
		all.Wait()
		for _, err := range errs {
			assert.NoError(t, err)
		}
		w.nothingToChange()
	}
}

// Clusters are added to the tenant, which keeps its admins, and to the namespace. None is removed.
func TestClusters(t *testing.T) {
	t.Parallel()
	geo := stack.Geo(t)
	w := newFixture(t, geo.A)
	w.Namespaces = []setup.Namespace{{Name: w.tenant + "/n", Clusters: []string{"zone-a"}}}
	t.Cleanup(func() { // without it the cluster refuses to delete the namespace
		w.admin(http.MethodPost, "namespaces/"+w.tenant+"/n/replication", []string{"zone-a"})
	})
	require.Contains(t, w.apply(), "+ tenant TENANT: clusters: zone-a\n+ namespace TENANT/n\n+ namespace TENANT/n: clusters: zone-a\n")
	type info struct {
		AdminRoles      []string `json:"adminRoles"`
		AllowedClusters []string `json:"allowedClusters"`
	}
	w.admin(http.MethodPost, "tenants/"+w.tenant, info{[]string{"owner"}, []string{"zone-a"}})
	w.Namespaces[0].Clusters = []string{"zone-b", "zone-a"}
	require.Equal(t, `  pulsar.admin_url ADMIN
- tenant TENANT: clusters: zone-a
+ tenant TENANT: clusters: zone-a, zone-b
  namespace TENANT/n
- namespace TENANT/n: clusters: zone-a
+ namespace TENANT/n: clusters: zone-a, zone-b
`, w.apply())
	var tenant info
	require.NoError(t, geo.A.Admin(t.Context(), http.MethodGet, "/admin/v2/tenants/"+w.tenant, nil, &tenant))
	require.Equal(t, []string{"owner"}, tenant.AdminRoles)
	w.Namespaces[0].Clusters = []string{"zone-a"}
	w.nothingToChange()
}

func TestNamespaceOf(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]string{
		"persistent://a/b/c": "a/b", "a/b/c": "a/b", "c": "public/default", "persistent://a/b/{tenant}": "a/b",
		"persistent://a/{tenant}/c": "", "persistent://{tenant}/b/c": "", "{topic}": "", "x-{topic}": "",
	} {
		name, fixed := setup.NamespaceOf(topic)
		assert.Equal(t, want, name, topic)
		assert.Equal(t, want != "", fixed, topic)
	}
}
