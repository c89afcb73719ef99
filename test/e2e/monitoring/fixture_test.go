package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"
)

// silent is a logger of clients of Redis: that one is unavailable is no news.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// fixture is the four services between their servers.
type fixture struct {
	t      testing.TB
	pulsar *stack.PulsarServer
	ns     string
	kafka  *stack.KafkaServer
	rabbit *stack.RabbitMQServer
	redis  [2]*stack.RedisServer
	nodes  *stack.RedisCluster

	orders, parcels  string // topic of Kafka, queue of RabbitMQ
	shipments        string // topic of Pulsar
	ops, queuedTopic string // topics of the Nightingales
	jobs             map[string][]*systems.Process
	nightingale      *systems.Process
	queued           *systems.Process // a Nightingale with ack: queued
	pigeonhole       *systems.Process
	zones            [2]*systems.Process
	ingest, engine   *systems.Process // Eventbridge

	unavailable atomic.Bool // the server of the subscriber "slow"
	invalid     atomic.Bool // invalid series are sent, too
	quiet       atomic.Bool // nothing is sent to the Nightingale with ack: queued
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{
		t: t, pulsar: stack.PrivatePulsar(t, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=512m")), kafka: stack.Kafka(t), rabbit: stack.RabbitMQ(t),
		redis: [2]*stack.RedisServer{durable(t), durable(t)}, nodes: stack.PrivateRedisCluster(t, 3, 0, "cluster-require-full-coverage no"),
		jobs: map[string][]*systems.Process{},
	}
	w.ns = w.pulsar.Namespace(t)
	require.NoError(t, w.pulsar.Admin(t.Context(), http.MethodPost, "/admin/v2/namespaces/"+w.ns+"/deduplication", true, nil))
	w.startNightingales()
	w.startPigeonhole()
	w.startSonics()
	w.startEventbridge()
	t.Cleanup(func() { // how they stop while servers do not run is no question here
		for _, processes := range w.jobs {
			for _, p := range processes {
				if p.Running() {
					p.Kill()
				}
			}
		}
	})
	return w
}

func durable(t testing.TB) *stack.RedisServer {
	t.Helper()
	return stack.PrivateRedis(t, stack.Conf(map[string]string{"appendonly": "yes"}))
}

func (w *fixture) topic(name string) string { return "persistent://" + w.ns + "/" + name }

// run starts a service. Variables have no prefix.
func (w *fixture) run(job string, args []string, env ...string) *systems.Process {
	w.t.Helper()
	all := []string{service + "=" + job}
	for _, variable := range append(env, "ADMIN_LISTEN=127.0.0.1:0") {
		all = append(all, strings.ToUpper(job)+"_"+variable)
	}
	p := systems.Run(w.t, args, all)
	w.jobs[job] = append(w.jobs[job], p)
	return p
}

// targets are the addresses of the services and of the broker. Each Sonic has its zone.
func (w *fixture) targets() []target {
	w.t.Helper()
	all := []target{{[]string{strings.TrimPrefix(w.pulsar.AdminURL(), "http://")}, map[string]string{"job": "pulsar"}}}
	for job, processes := range w.jobs {
		for i, p := range processes {
			labels := map[string]string{"job": job}
			if job == "sonic" {
				labels["zone"] = string(rune('a' + i))
			}
			all = append(all, target{[]string{p.AddressNow("admin")}, labels})
		}
	}
	return all
}

func (w *fixture) startNightingales() {
	ns := w.pulsar.Namespace(w.t) // without deduplication
	w.ops, w.queuedTopic = w.pulsar.Topic(w.t, ns, 0), "persistent://"+ns+"/queued-http_requests_total"
	w.nightingale = w.run("nightingale", nil, "PULSAR_URL="+w.pulsar.URL(), "HTTP_LISTEN=127.0.0.1:0", "TOPIC="+w.ops,
		"LIMITS_COMPRESSED_BYTES=256KiB", "LIMITS_DECODED_BYTES=1MiB", "LIMITS_IN_FLIGHT_BYTES=1280KiB")
	w.queued = w.run("nightingale", nil, "PULSAR_URL="+w.pulsar.URL(), "HTTP_LISTEN=127.0.0.1:0", "TOPIC=persistent://"+ns+"/queued-{name}", "ACK=queued")
}

func (w *fixture) startPigeonhole() {
	w.orders, w.parcels, w.shipments = w.kafka.Topic(w.t, 1), w.rabbit.Name(w.t), w.pulsar.Topic(w.t, w.ns, 0)
	shipped := w.kafka.Topic(w.t, 1)
	brokers, pulsar := strings.Join(w.kafka.Brokers(), ","), w.pulsar.URL()
	w.t.Cleanup(func() { _ = rabbitmq.Delete(w.rabbit.URL(), w.parcels) })
	config := fmt.Sprintf(`
routes:
  - name: orders
    source: {kafka: {brokers: [%[1]q], group: %[2]s, instance_id: one, topics: [%[2]s]}}
    sink: {pulsar: {url: %[3]q}}
    to: %[4]s
  - name: parcels
    source: {rabbitmq: {url: %[5]q, queues: [{name: %[6]s}], declare: create}}
    sink: {pulsar: {url: %[3]q}}
    to: "%[4]s-{header.kind:-parcels}"
    dead_letter: {to: %[4]s-dead, sink: {pulsar: {url: %[3]q}}}
  - name: shipments
    source: {pulsar: {url: %[3]q, admin_url: %[7]q, topics: [%[8]q], subscription: pigeonhole}}
    sink: {kafka: {brokers: [%[1]q]}}
    to: %[9]s
`, brokers, w.orders, pulsar, w.topic("shop"), strings.Replace(w.rabbit.URL(), "guest:guest@", "", 1), w.parcels, w.pulsar.AdminURL(), w.shipments, shipped)
	file := filepath.Join(w.t.TempDir(), "pigeonhole.yaml")
	require.NoError(w.t, os.WriteFile(file, []byte(config), 0o600))
	w.pigeonhole = w.run("pigeonhole", []string{"-config.file", file})
}

// startSonics starts two zones, and one that is alone, in front of a Redis Cluster.
func (w *fixture) startSonics() {
	for i, zone := range []string{"a", "b"} {
		env := []string{"ZONE=" + zone, "ZONES=[a, b]", "TOPIC=" + w.topic("sonic"), "LISTEN=127.0.0.1:0", "PULSAR_URL=" + w.pulsar.URL(), "REDIS_URL=" + w.redis[i].URL()}
		if zone == "a" {
			env = append(env, "OUTBOX_BYTES=1MiB")
		} else {
			env = append(env, "OUTBOX_BYTES=1MiB", "OUTBOX_FULL=drop", "PUBLISH=replicate")
		}
		w.zones[i] = w.run("sonic", nil, env...)
	}
	w.run("sonic", nil, "LISTEN=127.0.0.1:0", "PULSAR_URL="+w.pulsar.URL(), "TOPIC="+w.topic("alone"), "REDIS_URL=redis://"+strings.Join(w.nodes.Addresses(), ","))
}

func (w *fixture) startEventbridge() {
	common := []string{
		"HTTP_LISTEN=127.0.0.1:0", "PULSAR_URL=" + w.pulsar.URL(), "PULSAR_ADMIN_URL=" + w.pulsar.AdminURL(), "TOPICS_NAMESPACE=" + w.ns,
		"TARGETS_ALLOW=[127.0.0.0/8]", "INGEST_REQUEST_TIMEOUT=5s",
	}
	w.ingest = w.run("eventbridge", []string{"-roles=preprocessor"}, append(common, "INSTANCE=ingest")...)
	w.engine = w.run("eventbridge", []string{"-roles=engine,processor"}, append(common, "INSTANCE=engine")...)
	hooks := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow" && w.unavailable.Load():
			answer.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/refusing"):
			answer.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	w.t.Cleanup(hooks.Close)
	w.call(http.MethodPut, "/v1/buses/orders", map[string]any{"partitions": 1}, nil)
	for name, kind := range map[string]string{"slow": "order", "terminated": "order", "refusing": "refused", "refusing-too": "refused too"} {
		path := "/v1/buses/orders/subscribers/" + name
		w.call(http.MethodPut, path, map[string]any{
			"rules":    []any{map[string]any{"name": "all", "pattern": map[string]any{"type": []string{kind}}}},
			"target":   map[string]any{"webhook": map[string]string{"url": hooks.URL + "/" + name}},
			"delivery": map[string]any{"retry": map[string]any{"schedule": []string{"1s"}, "max_attempts": 1000}},
		}, nil)
		systems.Await(w.t, await.Patience, name+" is active", func() bool {
			var status struct{ Active bool }
			w.call(http.MethodGet, path+"/status", nil, &status)
			return status.Active
		})
	}
}

// call makes a request of Eventbridge's API, until it is taken.
func (w *fixture) call(method, path string, in, out any) {
	w.t.Helper()
	var text []byte
	systems.Await(w.t, await.Patience, method+" "+path, func() bool {
		status, answer := w.send(method, path, "application/json", in)
		text = answer
		return status/100 == 2
	})
	if out != nil {
		require.NoError(w.t, json.Unmarshal(text, out))
	}
}

// send makes a request of Eventbridge once. The status is 0 when there is no answer.
func (w *fixture) send(method, path, kind string, in any) (status int, answer []byte) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, []byte(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.ingest.AddressNow("http")+path, bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	answer, _ = io.ReadAll(resp.Body)
	return resp.StatusCode, answer
}

// client is one of a Sonic that runs now.
func client(p *systems.Process) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: p.AddressNow("redis"), MaxRetries: -1})
}
