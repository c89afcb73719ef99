package sonic_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

// service is a Sonic in this process. Its Pulsar is unavailable: whether Redis takes writes the test
// decides, see open.
type service struct {
	log   *observer.ObservedLogs
	redis *stack.RedisServer
}

// run starts a Sonic with what the file says, and stops it with the test.
func run(t *testing.T, srv *stack.RedisServer, text string, environ ...string) *service {
	t.Helper()
	cfg, err := load(t, write(t, text), append([]string{
		"SONIC_LISTEN=127.0.0.1:0", "SONIC_ADMIN_LISTEN=127.0.0.1:0", "SONIC_PULSAR_URL=pulsar://127.0.0.1:1", "SONIC_REDIS_URL=" + srv.URL(),
	}, environ...)...)
	require.NoError(t, err)
	watch, seen := observer.New(zapcore.DebugLevel)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- app.RunProgram(ctx, app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Build: sonic.Build}, cfg, zap.New(watch))
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
		if t.Failed() {
			for _, e := range seen.All() {
				t.Log(e.Time.Format(time.TimeOnly), e.Level, e.LoggerName, e.Message, e.ContextMap())
			}
		}
	})
	return &service{seen, srv}
}

// address is where a server listens.
func (s *service) address(t *testing.T, server string) (address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e := range s.log.FilterMessage("listening").FilterField(zap.String("server", server)).All() {
			address, _ = e.ContextMap()["address"].(string)
		}
		return address != ""
	}, await.Patience, 5*time.Millisecond)
	return address
}

// open has Redis take writes, as the owner of the topic does.
func (s *service) open(t *testing.T) {
	t.Helper()
	s.address(t, "redis") // the library is there
	require.NoError(t, s.redis.Client(t).Do(t.Context(), "FCALL", "sonic_open", "1", "{sonic:0}out", "a", "1", "0-0", "", "1", "b", "lww").Err())
}

// client is one of the endpoint. It sends nothing twice.
func (s *service) client(t *testing.T, change func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: s.address(t, "redis"), MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, ReadTimeout: await.Patience}
	if change != nil {
		change(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// page is one of the admin server.
func (s *service) page(t *testing.T, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.address(t, "admin")+path, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// TestReadyOnceWritesAreTaken: not before, and not while the outbox is full.
func TestReadyOnceWritesAreTaken(t *testing.T) {
	t.Parallel()
	s := run(t, stack.PrivateRedis(t), "outbox: {bytes: 1MiB, full: fail}")
	c := s.client(t, nil)
	status, body := s.page(t, "/-/ready")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, `"writes":{"ok":false,"error":"no Sonic has opened this Redis`)
	require.ErrorContains(t, c.Set(t.Context(), "a", 1, 0).Err(), "LOADING")

	s.open(t)
	ready := func(want int, reason string) {
		t.Helper()
		require.Eventually(t, func() bool {
			status, body = s.page(t, "/-/ready")
			return status == want
		}, await.Patience, 10*time.Millisecond)
		require.Contains(t, body, reason)
	}
	ready(http.StatusOK, `"writes":{"ok":true}`)
	require.NoError(t, c.Set(t.Context(), "a", 1, 0).Err())

	require.NoError(t, c.Set(t.Context(), "a", make([]byte, 2<<20), 0).Err())
	ready(http.StatusServiceUnavailable, "the outbox is full")
	require.ErrorContains(t, c.Set(t.Context(), "a", 1, 0).Err(), "ERR Sonic takes no writes: the outbox is full")
	require.NoError(t, c.StrLen(t.Context(), "a").Err(), "reads go on")
}
