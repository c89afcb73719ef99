package lifecycle_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/prometheus/prompb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
	"github.com/aviaryhq/aviary/test/systems/remotewrite"
)

// cluster is a Pulsar, and a namespace of a tenant that the service's -setup creates.
type cluster struct {
	t    *testing.T
	srv  *stack.PulsarServer
	name string
	ns   string
}

func newCluster(t *testing.T, srv *stack.PulsarServer, name string) cluster {
	t.Helper()
	c := cluster{t, srv, name, "setup-" + strings.ToLower(rand.Text()) + "/n"}
	t.Cleanup(c.clean)
	return c
}

// clean deletes the tenant. Replication ends first: a cluster refuses to delete what it shares.
func (c cluster) clean() {
	c.admin(http.MethodPost, "namespaces/"+c.ns+"/replication", []string{c.name})
	c.admin(http.MethodDelete, "tenants/"+strings.TrimSuffix(c.ns, "/n")+"?force=true", nil)
}

func (c cluster) topic(name string) string { return "persistent://" + c.ns + "/" + name }

func (c cluster) admin(method, path string, in any) {
	c.t.Helper()
	require.NoError(c.t, c.srv.Admin(context.WithoutCancel(c.t.Context()), method, "/admin/v2/"+path, in, nil))
}

// once runs a service with one flag to its end, and returns what it printed.
func (c cluster) once(service, flag string, keys map[string]string) (stdout, stderr string, err error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*await.Patience)
	defer cancel()
	cmd := systems.Command(ctx, []string{flag}, environment(service, keys))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	short := strings.NewReplacer(c.ns, "NS", strings.TrimSuffix(c.ns, "/n"), "TENANT", c.srv.AdminURL(), "ADMIN", " (environment)", "")
	return short.Replace(out.String()), short.Replace(errs.String()), err
}

// setUp sees that -setup.plan prints the plan and changes nothing, that -setup does it in two
// processes at once, and that nothing is left to change. The brokers create no topics from then on.
func (c cluster) setUp(service string, keys map[string]string, plan string, changes int) {
	c.t.Helper()
	head := service + ": its objects at Pulsar, + missing, - replaced:\n"
	for range 2 {
		text, problem, err := c.once(service, "-setup.plan", keys)
		require.NoError(c.t, err, problem)
		require.Equal(c.t, head+plan+fmt.Sprintf("%s: changes that -setup would make: %d\n", service, changes), text)
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			_, problem, err := c.once(service, "-setup", keys)
			assert.NoError(c.t, err, problem)
		})
	}
	both.Wait()
	text, problem, err := c.once(service, "-setup.plan", keys)
	require.NoError(c.t, err, problem)
	require.Equal(c.t, head+strings.ReplaceAll(made(plan), "+ ", "  ")+service+": nothing to change\n", text)
	c.admin(http.MethodPost, "namespaces/"+c.ns+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false})
}

// made is a plan that was carried out. Tenants are looked at only for what is missing.
func made(plan string) (left string) {
	for line := range strings.Lines(plan) {
		if !strings.HasPrefix(line, "+ tenant ") && !strings.HasPrefix(line, "- ") {
			left += line
		}
	}
	return left
}

// refuses sees that a plan with these keys fails with an error.
func (c cluster) refuses(service string, keys map[string]string, want string) {
	c.t.Helper()
	_, problem, err := c.once(service, "-setup.plan", keys)
	require.ErrorContains(c.t, err, "exit status 1")
	require.Contains(c.t, problem, want)
}

func with(keys map[string]string, key, value string) map[string]string {
	keys = maps.Clone(keys)
	keys[key] = value
	return keys
}

func TestNightingaleRunsOnItsSetup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, stack.Pulsar(t), "standalone")
	keys := map[string]string{
		"pulsar.url": c.srv.URL(), "pulsar.admin_url": c.srv.AdminURL(), "topic": c.topic("metrics"), "topics.overflow_topic": c.topic("rest"),
		"http.listen": "127.0.0.1:0", "setup.partitions": "3", "setup.retention.time": "24h", "setup.deduplication": "true",
	}
	c.setUp("nightingale", keys, `  pulsar.admin_url ADMIN
+ tenant TENANT: clusters: standalone
+ namespace NS
+ namespace NS: deduplication: on
+ namespace NS: retention: 24h0m0s, any size
+ topic persistent://NS/metrics: 3 partitions
+ topic persistent://NS/rest: 3 partitions
`, 6)
	c.refuses("nightingale", with(keys, "setup.partitions", "4"),
		"nightingale: topic: topic persistent://NS/metrics has 3 partitions and must have 4: partitions cannot be added: a series would move to another partition")
	c.refuses("nightingale", with(keys, "pulsar.admin_url", ""), "nightingale: pulsar.admin_url: must be set for -setup and -setup.plan")
	text, problem, err := c.once("nightingale", "-setup.plan", with(with(keys, "topic", "persistent://"+c.ns+"/{tenant}"), "setup.partitions", "2"))
	require.NoError(t, err, problem)
	require.Contains(t, text, "  topic persistent://NS/rest: 3 partitions, more than wanted, not changed\n")
	require.Contains(t, text, "  topic persistent://NS/{tenant}: its topics depend on what is sent, and are not created\n")

	p := run(t, "nightingale", keys)
	series := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "up"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: time.Now().UnixMilli()}}}
	answer, err := remotewrite.Send(t.Context(), "http://"+p.Address("http")+"/api/v1/write", &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series}}, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, answer.Status, answer.Text)
}

// stored waits until a route has stored messages.
func stored(t *testing.T, p *systems.Process, route string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, metrics := p.Ask(http.MethodGet, "/metrics")
		return bytes.Contains(metrics, fmt.Appendf(nil, "pigeonhole_messages_total{result=\"stored\",route=%q} %d\n", route, n))
	}, await.Patience, 20*time.Millisecond)
}

// The destination has as many partitions as the topic of Kafka. What is published to a source before
// the first start arrives.
func TestPigeonholeRunsOnItsSetup(t *testing.T) {
	t.Parallel()
	c, kafka := newCluster(t, stack.Pulsar(t), "standalone"), stack.Kafka(t)
	orders, source := kafka.Topic(t, 3), c.srv.Topic(t, c.srv.Namespace(t), 0)
	address := fmt.Sprintf("url: %q, admin_url: %q", c.srv.URL(), c.srv.AdminURL())
	routes := fmt.Sprintf(`[
  {name: exact, source: {kafka: {brokers: [%[1]q], group: %[2]q, topics: [%[2]q]}}, sink: {pulsar: {%[3]s, partition: source}},
   to: %[4]q, guarantee: effectively_once, dead_letter: {to: %[5]q}},
  {name: copy, source: {pulsar: {%[3]s, topics: [%[6]q], subscription: ours}}, sink: {pulsar: {%[3]s}}, to: %[7]q}]`,
		kafka.Brokers()[0], orders, address, c.topic("orders"), c.topic("refused"), source, c.topic("copies"))
	keys := map[string]string{"routes": routes, "setup.retention.bytes": "1GiB"}
	c.setUp("pigeonhole", keys, strings.ReplaceAll(`  routes[0].sink.pulsar.admin_url ADMIN
+ tenant TENANT: clusters: standalone
+ namespace NS
+ namespace NS: deduplication: on
+ namespace NS: retention: any age, 1GiB
+ topic persistent://NS/orders: 3 partitions
+ topic persistent://NS/refused: no partitions
+ topic SOURCE: subscription ours
+ topic persistent://NS/copies: no partitions
`, "SOURCE", source), 8)
	c.refuses("pigeonhole", with(keys, "setup.partitions", "2"), "topic persistent://NS/copies has no partitions and must have 2")
	missing := with(keys, "routes", strings.ReplaceAll(routes, "topics: ["+fmt.Sprintf("%q", orders), `topics: ["no-such-topic"`))
	c.refuses("pigeonhole", missing, "routes[0].to: must have as many partitions as the source, and their number is unknown")

	require.NoError(t, pulsar.Publish(t.Context(), c.srv.URL(), source, &messaging.Record{Key: "k", Payload: []byte("before the first start")}))
	producer, err := sarama.NewSyncProducer(kafka.Brokers(), producerConfig())
	require.NoError(t, err)
	for partition := range int32(3) {
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: orders, Partition: partition, Value: sarama.StringEncoder("x")})
		require.NoError(t, err)
	}
	require.NoError(t, producer.Close())
	p := run(t, "pigeonhole", map[string]string{"routes": routes})
	stored(t, p, "exact", 3)
	stored(t, p, "copy", 1)

	// The source gets more partitions, and so does the destination.
	admin, err := sarama.NewClusterAdmin(kafka.Brokers(), producerConfig())
	require.NoError(t, err)
	require.NoError(t, admin.CreatePartitions(orders, 5, nil, false))
	require.NoError(t, admin.Close())
	require.Eventually(t, func() bool {
		text, _, _ := c.once("pigeonhole", "-setup.plan", keys)
		return strings.Contains(text, "- topic persistent://NS/orders: 3 partitions\n+ topic persistent://NS/orders: 5 partitions\n")
	}, await.Patience, 100*time.Millisecond)
	text, problem, err := c.once("pigeonhole", "-setup", keys)
	require.NoError(t, err, problem)
	require.Contains(t, text, "pigeonhole: changes made: 1\n")
}

func producerConfig() *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes, cfg.Producer.Partitioner = true, sarama.NewManualPartitioner
	return cfg
}

// Two zones, each set up by itself: a write of one is read in the other.
func TestSonicRunsOnItsSetup(t *testing.T) {
	t.Parallel()
	geo := stack.Geo(t)
	a, b := newCluster(t, geo.A, "zone-a"), cluster{t, geo.B, "zone-b", ""}
	b.ns = a.ns
	t.Cleanup(b.clean)
	var clients []*redis.Client
	for zone, c := range map[string]cluster{"a": a, "b": b} {
		other := map[string]string{"a": "b", "b": "a"}[zone]
		keys := map[string]string{
			"pulsar.url": c.srv.URL(), "pulsar.admin_url": c.srv.AdminURL(), "redis.url": stack.PrivateRedis(t).URL(), "listen": "127.0.0.1:0",
			"topic": c.topic("sonic"), "zone": zone, "zones": "a,b", "setup.clusters": "zone-a,zone-b",
			"setup.retention.time": "24h", "setup.retention.bytes": "2GiB", "setup.backlog_quota.bytes": "1GiB",
		}
		c.setUp("sonic", keys, strings.NewReplacer("OWN", zone, "OTHER", other).Replace(`  pulsar.admin_url ADMIN
+ tenant TENANT: clusters: zone-a, zone-b
+ namespace NS
+ namespace NS: clusters: zone-a, zone-b
+ namespace NS: deduplication: on
+ namespace NS: subscriptions expire: never
+ namespace NS: retention: 24h0m0s, 2GiB
+ namespace NS: backlog quota: 1GiB, producer_request_hold
+ topic persistent://NS/sonic-OWN-0: no partitions
+ topic persistent://NS/sonic-OTHER-0: no partitions
+ topic persistent://NS/sonic-OTHER-0: subscription sonic-OWN
`), 10)
		c.admin(http.MethodPut, "persistent/"+c.ns+"/wide-"+zone+"-0/partitions", 2)
		c.refuses("sonic", with(keys, "topic", c.topic("wide")), "topic persistent://NS/wide-"+zone+"-0 has 2 partitions and must have none: the effects of a zone have one order")
		client := redis.NewClient(&redis.Options{Addr: run(t, "sonic", keys).Address("redis")})
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		clients = append(clients, client)
	}
	require.NoError(t, clients[0].Set(t.Context(), "a", "b", 0).Err())
	require.Eventually(t, func() bool { return clients[1].Get(t.Context(), "a").Val() == "b" }, await.Patience, 20*time.Millisecond)
}

func TestEventbridgeRunsOnItsSetup(t *testing.T) {
	t.Parallel()
	c := newCluster(t, stack.Pulsar(t), "standalone")
	keys := map[string]string{"pulsar.url": c.srv.URL(), "pulsar.admin_url": c.srv.AdminURL(), "topics.namespace": c.ns, "http.listen": "127.0.0.1:0"}
	c.setUp("eventbridge", keys, `  pulsar.admin_url ADMIN
+ tenant TENANT: clusters: standalone
+ namespace NS
+ namespace NS: deduplication: on
+ namespace NS: subscriptions expire: never
  namespace NS: retention: not set, and the service needs it: set setup.retention
+ topic persistent://NS/eventbridge-registry: no partitions
+ topic persistent://NS/eventbridge-registry: subscription keep
+ topic persistent://NS/eventbridge-status: no partitions
  topics of buses and subscribers: created with them, see the API
`, 7)
	c.refuses("eventbridge", with(keys, "setup.backlog_quota.policy", "consumer_backlog_eviction"),
		"setup.backlog_quota.policy: must not be consumer_backlog_eviction: what it removes is lost")
	p := run(t, "eventbridge", keys)
	api := "http://" + p.Address("http")
	require.Equal(t, http.StatusCreated, post(t, http.MethodPut, api+"/v1/buses/orders", "application/json", []byte(`{"partitions": 2}`)))
	event := []byte(`{"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.placed"}`)
	require.Eventually(t, func() bool {
		return post(t, http.MethodPost, api+"/v1/buses/orders/events", "application/cloudevents+json", event) == http.StatusAccepted
	}, await.Patience, 20*time.Millisecond)
}
