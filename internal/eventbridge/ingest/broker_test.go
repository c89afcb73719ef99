package ingest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// onPulsar is a handler on a real Pulsar.
type onPulsar struct {
	*Handler
	client *messaging.Client
	url    string
	addr   string
}

func newOnPulsar(t testing.TB, log *zap.Logger, pulsar messaging.Config, namespace string, cfg Config) *onPulsar {
	t.Helper()
	client, err := messaging.Dial(t.Context(), pulsar, messaging.WithLogger(log))
	require.NoError(t, err)
	p := &onPulsar{client: client}
	open := func(ctx context.Context, topic string) (Publisher, error) {
		return client.Publisher(ctx, topic, cfg.Profile)
	}
	known := storetest.NewStore(storetest.Snapshot(t, 1, buses(), nil))
	p.Handler, err = New(cfg, known, model.Topics{Namespace: namespace}, nil, open, log, prometheus.NewRegistry())
	require.NoError(t, err)
	router := chi.NewRouter()
	p.Routes(router)
	server := httptest.NewUnstartedServer(nil)
	server.Config = httpserver.NewServer(cfg.Limits.ReadTimeout, cfg.RequestTimeout, p.ConnState, router)
	server.Start()
	p.url, p.addr = server.URL, server.Listener.Addr().String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		server.Close()
		assert.NoError(t, p.Close(ctx))
		assert.Zero(t, p.budget.Used())
		assert.NoError(t, client.Close(ctx))
	})
	return p
}

// stored counts the copies of each event on a bus' topic, by id.
func (p *onPulsar) stored(t testing.TB, bus string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	r, err := p.client.Reader(ctx, messaging.ReaderConfig{Topic: p.buses.topics.Events(bus)})
	require.NoError(t, err)
	copies := map[string]int{}
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		e, err := event.Decode(d.Payload)
		if err != nil || d.Key != keyOf(&e) {
			return fmt.Errorf("%q under %q: %w", d.Payload, d.Key, err)
		}
		copies[e.ID]++
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, r.Close(ctx))
	return copies
}

// TestWhatIsAcceptedIsStored: through cuts of the line, a restart of the broker, senders that hang
// up, slow ones, and ones that send nonsense. Each event that was answered 202 is on the topic,
// none that was refused is, and the quota was charged for what is stored only.
func TestWhatIsAcceptedIsStored(t *testing.T) {
	t.Parallel()
	url, pulsar, line := proxy.Pulsar(t, stack.Memory("-Xmx512m -XX:MaxDirectMemorySize=256m"))
	cfg := DefaultConfig()
	cfg.RequestTimeout = 3 * time.Second
	const burst = 10_000_000
	cfg.Tenants = []TenantConfig{{Name: "shop", Buses: []string{"*"}, APIKeys: []secret.String{"key"}, Quota: Quota{EventsPerSecond: 1e-6, EventsBurst: burst}}}
	p := newOnPulsar(t, zaptest.NewLogger(t), messaging.Config{URL: url, ListenerName: proxy.Listener}, pulsar.Namespace(t), cfg)

	ctx, cancel := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	var mu sync.Mutex
	accepted := map[string]bool{}
	var answers [600]atomic.Int64
	post := func(ctx context.Context, contentType, body string) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/buses/orders/events", strings.NewReader(body))
		if err != nil {
			return 0
		}
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("X-Api-Key", "key")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		answers[resp.StatusCode].Add(1)
		return resp.StatusCode
	}
	note := func(ids ...string) {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			accepted[id] = true
		}
	}
	for s := range 4 {
		senders.Go(func() { // single events, sent again until they are accepted
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("one-%d-%d", s, i)
				for ctx.Err() == nil {
					if post(ctx, event.MediaType, anEvent(id, "")) == http.StatusAccepted {
						note(id)
						break
					}
				}
			}
		})
		senders.Go(func() { // batches, half of which have an invalid entry
			for i := 0; ctx.Err() == nil; i++ {
				var ids, all []string
				for n := range 20 {
					ids = append(ids, fmt.Sprintf("batch-%d-%d-%d", s, i, n))
					all = append(all, anEvent(ids[n], ""))
				}
				want := http.StatusAccepted
				if i%2 == 1 {
					all, want = append(all, anEvent("bad", `,"BAD":1`)), http.StatusUnprocessableEntity
				}
				if post(ctx, event.BatchMediaType, "["+strings.Join(all, ",")+"]") == want {
					note(ids...)
				}
			}
		})
	}
	senders.Go(func() { // those that hang up
		for i := 0; ctx.Err() == nil; i++ {
			short, stop := context.WithTimeout(ctx, time.Duration(i%7)*time.Millisecond)
			if id := fmt.Sprintf("gone-%d", i); post(short, event.MediaType, anEvent(id, "")) == http.StatusAccepted {
				note(id)
			}
			stop()
		}
	})
	senders.Go(func() { // nonsense
		for ctx.Err() == nil {
			post(ctx, event.MediaType, anEvent("nonsense", `,"data":{"a":1,"a":2}`))
		}
	})
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(accepted) }
	more := func(why string) {
		t.Helper()
		before := count()
		require.Eventually(t, func() bool { return count() > before+200 }, await.Patience, 10*time.Millisecond, why)
	}
	more("before anything happens")
	for range soak.Rounds(t, 1, 10) {
		line.Cut()
		require.Eventually(t, func() bool { return p.Check(ctx) != nil }, await.Patience, 10*time.Millisecond, "it says that it is not ready")
		require.NoError(t, line.Restore())
		more("after the line was cut")
	}
	require.NoError(t, pulsar.Kill())
	require.NoError(t, pulsar.Start(ctx))
	more("after the broker was killed")
	cancel()
	senders.Wait()
	require.Eventually(t, func() bool { return p.budget.Used() == 0 }, await.Patience, 10*time.Millisecond)

	copies := p.stored(t, "orders")
	lost := 0
	for id := range accepted {
		if copies[id] == 0 {
			lost++
		}
	}
	assert.Zero(t, lost, "of %d events", len(accepted))
	assert.Zero(t, copies["nonsense"]+copies["bad"])
	stored := testutil.ToFloat64(p.metrics.events.accepted)
	left := p.senders.Load().tenants["shop"].events.Available(time.Now())
	assert.InDelta(t, burst-stored, left, 1, "charged is what is stored")
	for _, status := range []int{202, 400, 422, 503} {
		assert.Positive(t, answers[status].Load(), status)
	}
	assert.Zero(t, answers[500].Load())
	t.Logf("%d accepted, answers 202: %d, 400: %d, 422: %d, 503: %d", len(accepted), answers[202].Load(), answers[400].Load(), answers[422].Load(), answers[503].Load())
}

// TestAFloodIsRefusedNotQueued: more than fits is answered 503 at once, memory stays within its
// bound, and what is accepted is stored.
func TestAFloodIsRefusedNotQueued(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	cfg := DefaultConfig()
	cfg.Limits.BodyBytes, cfg.Limits.DecodedBytes, cfg.Limits.InFlightBytes = 128<<10, 128<<10, 5<<20
	p := newOnPulsar(t, zaptest.NewLogger(t), messaging.Config{URL: srv.URL()}, srv.Namespace(t), cfg)
	data := strings.Repeat("x", 90<<10)
	var accepted, refused, most atomic.Int64
	var senders sync.WaitGroup
	for s := range 64 {
		senders.Go(func() {
			for i := range 10 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/buses/orders/events", strings.NewReader(anEvent(fmt.Sprint(s, "-", i), `,"data":"`+data+`"`)))
				if err != nil {
					return
				}
				req.Header.Set("Content-Type", event.MediaType)
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if used := p.budget.Used(); used > most.Load() {
					most.Store(used)
				}
				switch resp.StatusCode {
				case http.StatusAccepted:
					accepted.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				default:
					t.Errorf("answered %d", resp.StatusCode)
				}
			}
		})
	}
	senders.Wait()
	assert.EqualValues(t, 640, accepted.Load()+refused.Load())
	assert.Positive(t, accepted.Load())
	assert.LessOrEqual(t, most.Load(), int64(cfg.Limits.InFlightBytes))
	assert.Len(t, p.stored(t, "orders"), int(accepted.Load()))
	t.Logf("%d accepted, %d refused", accepted.Load(), refused.Load())
}
