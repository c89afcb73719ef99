// Package sonic tests the binary between real servers: a Redis and a Pulsar cluster in each zone.
package sonic

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/parallel"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// silent is a logger of clients: that nobody listens while a process is unavailable is no news.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	parallel.Tests(4)
	systems.Main(m, func() int {
		return app.Main(app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Flags: sonic.Flags, Build: sonic.Build})
	})
}

// owners are the tests that have Pulsars of their own: two at a time, for the memory that these
// take.
var owners = make(chan struct{}, 2)

// awaitOwner waits until the test may start Pulsars of its own. Others may once these have ended.
func awaitOwner(t testing.TB) {
	t.Helper()
	owners <- struct{}{}
	t.Cleanup(func() { <-owners })
}

// cluster starts a cluster that only this test uses, behind a proxy at url that line controls.
func cluster(t testing.TB) (url string, pulsar *stack.PulsarServer, line *proxy.Proxy) {
	t.Helper()
	awaitOwner(t)
	return proxy.Pulsar(t, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=256m"))
}

// service is a Sonic that can be started again after it ended.
type service struct {
	*systems.Process
	t testing.TB
}

// run starts a service, which is stopped with the test. env are variables such as SONIC_ZONE=a.
func run(t testing.TB, env ...string) *service {
	t.Helper()
	return &service{systems.Run(t, nil, append([]string{"SONIC_ADMIN_LISTEN=127.0.0.1:0", "SONIC_LISTEN=127.0.0.1:0"}, env...)), t}
}

// client is one of the endpoint. It sends nothing twice.
func (s *service) client() *redis.Client {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Address("redis"), MaxRetries: -1, ReadTimeout: await.Patience, WriteTimeout: await.Patience})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// zones is what GET /zones shows.
func (s *service) zones() (z sonic.Zones) {
	s.t.Helper()
	status, body := s.Ask(http.MethodGet, "/zones")
	require.Equal(s.t, http.StatusOK, status)
	require.NoError(s.t, json.Unmarshal(body, &z))
	return z
}

// zone is a Redis with its Sonic.
type zone struct {
	*service
	redis *stack.RedisServer
}

// pair runs two zones, a and b. more are variables of both.
func pair(t testing.TB, more ...string) (a, b zone) {
	t.Helper()
	geo := stack.Geo(t)
	topic := "persistent://" + geo.Namespace(t) + "/sonic"
	redises := []*stack.RedisServer{durable(t), durable(t)}
	begin := func(i int, name, url string) zone {
		env := append([]string{"SONIC_ZONE=" + name, "SONIC_ZONES=[a, b]", "SONIC_TOPIC=" + topic, "SONIC_PULSAR_URL=" + url, "SONIC_REDIS_URL=" + redises[i].URL()}, more...)
		return zone{run(t, env...), redises[i]}
	}
	a, b = begin(0, "a", geo.A.URL()), begin(1, "b", geo.B.URL())
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	return a, b
}

// durable is a Redis that loses nothing when it is killed.
func durable(t testing.TB) *stack.RedisServer {
	t.Helper()
	return stack.PrivateRedis(t, stack.Conf(map[string]string{"appendonly": "yes", "appendfsync": "always"}))
}

// awaitWritable waits until the zone takes writes.
func (z zone) awaitWritable() {
	z.t.Helper()
	c := z.client()
	var err error
	systems.Await(z.t, await.Patience, "writes are taken", func() bool {
		err = c.Set(z.t.Context(), "ready?", z.redis.URL(), 0).Err()
		return err == nil
	})
}

// metric is the value of a metric, 0 when there is none.
func (s *service) metric(name string) (value float64) {
	s.t.Helper()
	status, text := s.Ask(http.MethodGet, "/metrics")
	require.Equal(s.t, http.StatusOK, status)
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	value, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(s.t, err)
	return value
}
