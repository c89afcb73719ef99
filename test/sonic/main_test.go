// Package sonic tests the binary between real servers: a Redis and a Pulsar cluster per zone.
package sonic

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/stack"
)

// asService makes the test binary run Sonic, as a process that can be killed.
const asService = "AVIARY_TEST_AS_SONIC"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		os.Exit(app.Main(app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Flags: sonic.Flags, Build: sonic.Build}))
	}
	os.Exit(m.Run())
}

// service is a Sonic that can be started again after it ended.
type service struct {
	t    testing.TB
	env  []string
	args []string
	cmd  *exec.Cmd
	done chan error
	log  *logged
	from int // where this process began to write
}

// logged keeps what the process has written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// run starts a service, which is stopped with the test. env are variables such as SONIC_ZONE=a.
func run(t testing.TB, env ...string) *service {
	t.Helper()
	s := &service{t: t, env: env, log: new(logged)}
	s.start()
	t.Cleanup(func() {
		defer func() {
			if t.Failed() {
				text := s.log.String()
				t.Logf("sonic %v wrote:\n%s", env, text[max(0, len(text)-6000):])
			}
		}()
		if s.cmd != nil {
			s.stop()
		}
	})
	return s
}

func (s *service) start() {
	s.t.Helper()
	s.cmd = exec.Command(os.Args[0], s.args...) // it ends with the test, in order
	s.cmd.Env = append(append(os.Environ(), asService+"=1", "SONIC_ADMIN_LISTEN=127.0.0.1:0", "SONIC_LISTEN=127.0.0.1:0"), s.env...)
	s.cmd.Stderr, s.from = s.log, len(s.log.String())
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(s.t, s.cmd.Start())
	cmd, done := s.cmd, make(chan error, 1)
	s.done = done
	go func() { done <- cmd.Wait() }()
}

// stop asks the service to end and waits for it.
func (s *service) stop() {
	s.t.Helper()
	s.address("admin") // before it has begun a signal just ends it
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, s.ended(40*time.Second), "%s", s.log)
}

// ended waits for the end of the process, and returns how it ended.
func (s *service) ended(limit time.Duration) error {
	s.t.Helper()
	cmd := s.cmd
	s.cmd = nil
	select {
	case err := <-s.done:
		return err
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		s.t.Fatalf("did not end:\n%s", s.log)
		return nil
	}
}

// kill ends it at once.
func (s *service) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	<-s.done
	s.cmd = nil
}

// address is where the process listens for the server of that name.
func (s *service) address(server string) (address string) {
	s.t.Helper()
	pattern := regexp.MustCompile(`"msg":"listening"[^\n]*"server":"` + server + `"[^\n]*"address":"([^"]+)"`)
	require.Eventually(s.t, func() bool {
		found := pattern.FindStringSubmatch(s.log.String()[s.from:])
		if found != nil {
			address = found[1]
		}
		return address != ""
	}, 20*time.Second, 5*time.Millisecond, "%s", s.log)
	return address
}

// addressNow is where clients connect to the process that runs, or to the one before.
func (s *service) addressNow() string {
	found := regexp.MustCompile(`"server":"redis"[^\n]*"address":"([^"]+)"`).FindAllStringSubmatch(s.log.String(), -1)
	if len(found) == 0 {
		return "127.0.0.1:1"
	}
	return found[len(found)-1][1]
}

// client is one of the endpoint. It sends nothing twice.
func (s *service) client() *redis.Client {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.address("redis"), MaxRetries: -1})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// zones is what GET /zones shows.
func (s *service) zones() (z sonic.Zones) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address("admin")+"/zones", nil)
	require.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&z))
	return z
}

// await waits until is holds.
func await(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(2 * time.Millisecond) { // polling a condition
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
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
	await(z.t, 30*time.Second, "writes are taken", func() bool {
		err = c.Set(z.t.Context(), "ready?", z.redis.URL(), 0).Err()
		return err == nil
	})
}

// metric is the value of a metric, 0 when there is none.
func (s *service) metric(name string) (value float64) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address("admin")+"/metrics", nil)
	require.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	value, err = strconv.ParseFloat(string(found[1]), 64)
	require.NoError(s.t, err)
	return value
}
