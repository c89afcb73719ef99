package api_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// slow is a registry whose changes take a while.
type slow struct {
	*registry.Store

	takes time.Duration
}

func (slow) Snapshot() *registry.Snapshot {
	s, _ := registry.NewSnapshot(0, nil, nil)
	return s
}

func (s slow) PutBus(ctx context.Context, b registry.Bus, _ registry.Condition) (*registry.Bus, bool, error) {
	select {
	case <-time.After(s.takes):
		return &b, true, nil
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

func (s slow) DeleteBus(ctx context.Context, name string, c registry.Condition) error {
	_, _, err := s.PutBus(ctx, registry.NewBus(name), c)
	return err
}

// TestAChangeThatTakesTooLongIsAnswered: whoever waits for a registry that cannot be written learns so.
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

// TestAChangeMayTakeLongerThanASenderMay: the server's bounds are for senders of events. A change that had waited for Pulsar got no answer at all.
func TestAChangeMayTakeLongerThanASenderMay(t *testing.T) {
	const sender = 100 * time.Millisecond
	a, err := api.New(api.Options{Registry: slow{takes: 10 * sender}, Log: zap.NewNop()})
	require.NoError(t, err)
	router := chi.NewRouter()
	a.Routes(router)
	server := door.NewServer(sender, sender, func(net.Conn, http.ConnState) {}, router)
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
