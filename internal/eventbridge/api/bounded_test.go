package api_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver"
)

// slow is a registry whose changes take a while.
type slow struct {
	*store.Store

	takes time.Duration
}

func (slow) Snapshot() *store.Snapshot {
	s, _ := store.NewSnapshot(0, nil, nil)
	return s
}

func (s slow) PutBus(ctx context.Context, b model.Bus, _ store.Condition) (*model.Bus, bool, error) {
	select {
	case <-time.After(s.takes):
		return &b, true, nil
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

func (s slow) DeleteBus(ctx context.Context, name string, c store.Condition) error {
	_, _, err := s.PutBus(ctx, model.NewBus(name), c)
	return err
}

// TestAChangeThatTakesTooLongIsAnswered: whoever waits for a registry that cannot be written learns
// so.
func TestAChangeThatTakesTooLongIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := api.New(api.Options{Registry: slow{takes: time.Hour}, Log: zap.NewNop()})
		require.NoError(t, err)
		router := chi.NewRouter()
		a.Routes(router)
		begin, w := time.Now(), httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "http://localhost/v1/buses/b", nil))
		require.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body)
		require.Equal(t, "5", w.Header().Get("Retry-After"))
		require.Contains(t, w.Body.String(), "it took longer than 20s")
		require.Equal(t, 20*time.Second, time.Since(begin))
	})
}

// TestAChangeMayTakeLongerThanASenderMay: the server's bounds are for senders of events. A change
// that had waited for Pulsar got no answer at all.
func TestAChangeMayTakeLongerThanASenderMay(t *testing.T) {
	t.Parallel()
	const sender = 300 * time.Millisecond
	a, err := api.New(api.Options{Registry: slow{takes: 3 * sender}, Log: zap.NewNop()})
	require.NoError(t, err)
	router := chi.NewRouter()
	a.Routes(router)
	server := httpserver.NewServer(sender, sender, func(net.Conn, http.ConnState) {}, router)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
		http.DefaultClient.CloseIdleConnections()
	})
	at := "http://" + ln.Addr().String() + "/v1/buses/b"
	for range 2 { // the second time on the same connection
		made := call(t, http.MethodPut, at, `{}`)
		require.Equal(t, http.StatusCreated, made.status, made.body)
		require.Equal(t, http.StatusNoContent, call(t, http.MethodDelete, at, "").status)
	}
}

// large is a registry whose objects are as large as can be.
type large struct {
	*store.Store

	now *store.Snapshot
}

func (l large) Snapshot() *store.Snapshot { return l.now }

func (large) PutBus(context.Context, model.Bus, store.Condition) (*model.Bus, bool, error) {
	return nil, false, model.ErrNewer
}

// deadLetters is a processor of large dead letters.
type deadLetters struct {
	api.Processor

	atOnce, most atomic.Int64
}

func (l *deadLetters) DeadLetters(_ context.Context, _, _ string, n int) ([]delivery.DeadLetter, error) {
	now := l.atOnce.Add(1)
	defer l.atOnce.Add(-1)
	for was := l.most.Load(); now > was && !l.most.CompareAndSwap(was, now); was = l.most.Load() {
	}
	time.Sleep(time.Second) // of the test's clock: all that may come have come
	one, err := json.Marshal(strings.Repeat("x", 128<<10))
	return slices.Repeat([]delivery.DeadLetter{{Event: one}}, n), err
}

// places is how many requests the API answers at a time.
const places = 16

// TestRequestsAreBounded: those that wait for Pulsar take no more memory than so many requests may,
// and the answer to a further one comes in time.
func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := api.New(api.Options{Registry: slow{takes: 10 * time.Second}, Log: zap.NewNop()})
		require.NoError(t, err)
		router := chi.NewRouter()
		a.Routes(router)
		var all sync.WaitGroup
		var done, refused atomic.Int64
		for range 3 * places {
			all.Go(func() {
				w := httptest.NewRecorder()
				router.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "http://localhost/v1/buses/b", nil))
				switch w.Code {
				case http.StatusNoContent:
					done.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				}
			})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, int64(places), done.Load())
		all.Wait()
		require.Equal(t, int64(3*places), done.Load()+refused.Load())
		require.GreaterOrEqual(t, refused.Load(), int64(places), "they waited for 20 s")
	})
}

// TestABodyMayWaitForAPlace: the server's read timeout is for senders of events. A change that waits
// longer than that for other requests is made all the same.
func TestABodyMayWaitForAPlace(t *testing.T) {
	const readTimeout = 100 * time.Millisecond
	a, err := api.New(api.Options{Registry: slow{takes: 5 * readTimeout}, Log: zap.NewNop()})
	require.NoError(t, err)
	router := chi.NewRouter()
	a.Routes(router)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := httpserver.NewServer(readTimeout, readTimeout, func(net.Conn, http.ConnState) {}, router)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	var all sync.WaitGroup
	for range 2 * places {
		all.Go(func() {
			made := call(t, http.MethodPut, "http://"+listener.Addr().String()+"/v1/buses/b", "{}"+strings.Repeat(" ", 60_000))
			assert.Equal(t, http.StatusCreated, made.status, made.body)
		})
	}
	all.Wait()
}

// TestReadingDeadLettersIsBounded: one answer may have 16 MiB.
func TestReadingDeadLettersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, err := store.NewSnapshot(1, []model.Bus{model.NewBus("b")}, nil)
		require.NoError(t, err)
		deliveries := &deadLetters{}
		a, err := api.New(api.Options{Registry: large{now: now}, Processor: deliveries, Log: zap.NewNop()})
		require.NoError(t, err)
		router := chi.NewRouter()
		a.Routes(router)
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				w := httptest.NewRecorder()
				router.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/buses/b/dead-letters?limit=100", nil))
				assert.Equal(t, http.StatusOK, w.Code)
			})
		}
		all.Wait()
		require.Equal(t, int64(2), deliveries.most.Load())
	})
}

// TestARegistryOfANewerVersionIsNoFaultOfTheRequest: another instance may be new enough.
func TestARegistryOfANewerVersionIsNoFaultOfTheRequest(t *testing.T) {
	now, err := store.NewSnapshot(0, nil, nil)
	require.NoError(t, err)
	a, err := api.New(api.Options{Registry: large{now: now}, Log: zap.NewNop()})
	require.NoError(t, err)
	router := chi.NewRouter()
	a.Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	made := call(t, http.MethodPut, server.URL+"/v1/buses/b", `{}`)
	require.Equal(t, http.StatusServiceUnavailable, made.status, made.body)
	require.Contains(t, made.body, "update this instance")
}
