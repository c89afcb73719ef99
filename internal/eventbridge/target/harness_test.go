package target

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// harness is a factory for tests, which may deliver to this machine.
type harness struct {
	*Factory
	t testing.TB
}

func newHarness(t testing.TB, change func(*Options)) *harness {
	t.Helper()
	o := Options{Config: Config{}, Topics: model.Topics{Namespace: "public/default"}, Log: zaptest.NewLogger(t)}
	o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	if change != nil {
		change(&o)
	}
	f, err := NewFactory(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, f.Close(ctx))
	})
	return &harness{Factory: f, t: t}
}

// target makes the target of a subscriber and closes it at the test's end.
func (h *harness) target(s *model.Subscriber) Target {
	h.t.Helper()
	target, err := h.New(s)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { require.NoError(h.t, target.Close(context.Background())) })
	return target
}

// webhook makes a target with the URL and what change says.
func (h *harness) webhook(url string, change func(*model.Webhook)) Target {
	h.t.Helper()
	w := &model.Webhook{URL: url}
	if change != nil {
		change(w)
	}
	return h.target(&model.Subscriber{
		Bus: "orders", Name: "shop", Target: model.Target{Webhook: w}, Delivery: model.Delivery{Timeout: model.Duration(await.Patience)},
	})
}

// withTimeout is webhook with another timeout.
func (h *harness) withTimeout(url string, timeout time.Duration) Target {
	h.t.Helper()
	return h.target(&model.Subscriber{
		Target: model.Target{Webhook: &model.Webhook{URL: url}}, Delivery: model.Delivery{Timeout: model.Duration(timeout)},
	})
}

// event is one of the id.
func (h *harness) event(id string) Delivery {
	h.t.Helper()
	return h.stored(`{"specversion":"1.0","id":"` + id + `","source":"/shop","type":"order.placed","data":{"n":1}}`)
}

func (h *harness) stored(text string) Delivery {
	h.t.Helper()
	e, err := event.Decode([]byte(text))
	require.NoError(h.t, err)
	return Delivery{Event: e}
}

// deliver delivers one.
func deliver(t testing.TB, target Target, d Delivery) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	defer cancel()
	results := target.Deliver(ctx, []Delivery{d})
	require.Len(t, results, 1)
	return results[0]
}

// receiver is a webhook that keeps what it gets and answers as it is told.
type receiver struct {
	*httptest.Server
	count  atomic.Int64
	answer func(w http.ResponseWriter, r *http.Request)

	mu       sync.Mutex
	requests []received
}

type received struct {
	head http.Header
	host string
	body string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	r.count.Add(1)
	r.mu.Lock()
	r.requests = append(r.requests, received{request.Header.Clone(), request.Host, string(body)})
	r.mu.Unlock()
	if r.answer != nil {
		r.answer(w, request)
	}
}

func (r *receiver) last() received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[len(r.requests)-1]
}

func newReceiver(t testing.TB, answer func(w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// newServerAt is newReceiver at an address.
func newServerAt(t testing.TB, address string) *receiver {
	t.Helper()
	r := &receiver{}
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	r.Server = httptest.NewUnstartedServer(r)
	_ = r.Listener.Close()
	r.Listener = listener
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// rawServer answers each connection by what converse does with it.
func rawServer(t testing.TB, converse func(net.Conn)) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conversations sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	conversations.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
			conversations.Go(func() {
				defer unwatch()
				defer func() { _ = conn.Close() }()
				converse(conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		conversations.Wait()
	})
	return fmt.Sprintf("http://%s/", listener.Addr())
}
