package ingest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// broker stands for Pulsar: it keeps what is published, or does what publish says.
type broker struct {
	mu      sync.Mutex
	records map[string][]messaging.Record // by topic
	opened  []string
	closed  []string
	publish func(r messaging.Record) (outcome error, answered bool) // nil: all is well
	openErr func(ctx context.Context, topic string) error           // nil: all is well
	waiting []func(error)                                           // of those not answered
}

type fakePublisher struct {
	b     *broker
	topic string
}

func (b *broker) open(ctx context.Context, topic string) (Publisher, error) {
	b.mu.Lock()
	openErr := b.openErr
	b.mu.Unlock()
	if openErr != nil {
		if err := openErr(ctx, topic); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened = append(b.opened, topic)
	return &fakePublisher{b, topic}, nil
}

func (f *fakePublisher) PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	if ctx.Err() != nil {
		done(messaging.MessageID{}, ctx.Err())
		return
	}
	f.b.mu.Lock()
	outcome, answered := error(nil), true
	if f.b.publish != nil {
		outcome, answered = f.b.publish(*r)
	}
	store := func(err error) {
		if err == nil {
			f.b.records[f.topic] = append(f.b.records[f.topic], *r)
		}
	}
	if !answered {
		f.b.waiting = append(f.b.waiting, func(err error) { store(err); done(messaging.MessageID{}, err) })
	} else {
		store(outcome)
	}
	f.b.mu.Unlock()
	if answered {
		done(messaging.MessageID{}, outcome)
	}
}

// acknowledge ends what is waiting.
func (b *broker) acknowledge(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, done := range b.waiting {
		done(err)
	}
	b.waiting = nil
}

func (f *fakePublisher) Flush(ctx context.Context) error {
	for {
		f.b.mu.Lock()
		waiting := len(f.b.waiting)
		f.b.mu.Unlock()
		if waiting == 0 {
			return nil
		}
		timer := time.NewTimer(time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (f *fakePublisher) Close(context.Context) error {
	f.b.acknowledge(messaging.ErrUnacknowledged)
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.b.closed = append(f.b.closed, f.topic)
	return nil
}

// set changes what the broker does.
func (b *broker) set(publish func(messaging.Record) (error, bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.publish = publish
}

func (b *broker) stored(topic string) []messaging.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.records[topic])
}

// double is a handler behind the real server, with a broker of its own.
type double struct {
	*Handler
	*broker
	store  *storetest.Store
	server *http.Server
	url    string
	addr   string
}

const (
	namespace = "public/default"
	orders    = "persistent://public/default/eventbridge-orders-events"
)

// buses are orders, which takes all; strict with a schema and small events; and plain with a
// mapping.
func buses() []model.Bus {
	return []model.Bus{
		{Name: "orders"},
		{Name: "strict", MaxEventBytes: 1 << 10, Schemas: map[string]json.RawMessage{
			"order": json.RawMessage(`{"type":"object","required":["total"],"properties":{"total":{"type":"number","minimum":0},"name":{"type":"string","maxLength":5}}}`)}},
		{Name: "plain", Mapping: &model.Mapping{ID: "/id", Source: "=/shop", Type: "/kind"}},
	}
}

func newDouble(t testing.TB, change func(*Config)) *double {
	t.Helper()
	cfg := DefaultConfig()
	cfg.RequestTimeout, cfg.Limits.ReadTimeout = await.Patience, await.Patience
	if change != nil {
		change(&cfg)
	}
	for i := range cfg.Tenants {
		if cfg.Tenants[i].Buses == nil {
			cfg.Tenants[i].Buses = []string{"*"}
		}
	}
	require.Empty(t, config.Validate(cfg))
	d := &double{broker: &broker{records: map[string][]messaging.Record{}}, store: storetest.NewStore(storetest.Snapshot(t, 1, buses(), nil))}
	var err error
	d.Handler, err = New(cfg, d.store, model.Topics{Namespace: namespace}, nil, d.broker.open, zaptest.NewLogger(t), prometheus.NewRegistry())
	require.NoError(t, err)
	router := chi.NewRouter()
	d.Routes(router)
	server := httptest.NewUnstartedServer(nil)
	server.Config = httpserver.NewServer(cfg.Limits.ReadTimeout, cfg.RequestTimeout, d.ConnState, router)
	server.Start()
	d.server = server.Config
	d.url, d.addr = server.URL, server.Listener.Addr().String()
	t.Cleanup(func() {
		server.Close()
		assert.NoError(t, d.Close(context.Background()))
		assert.Zero(t, d.budget.Used(), "all is given back")
	})
	return d
}

// reply is an answer.
type reply struct {
	status  int
	header  http.Header
	body    string
	problem struct {
		Title   string   `json:"title"`
		Status  int      `json:"status"`
		Detail  string   `json:"detail"`
		Reason  string   `json:"reason"`
		Results []result `json:"results"`
	}
}

// post sends a body to a bus with headers. It checks what every answer has to be.
func (d *double) post(t testing.TB, bus string, body io.Reader, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/buses/"+bus+"/events", body)
	require.NoError(t, err)
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Add(pair[0], pair[1])
	}
	return do(t, req)
}

func do(t testing.TB, req *http.Request) reply {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	return readReply(t, resp)
}

func readReply(t testing.TB, resp *http.Response) reply {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	r := reply{status: resp.StatusCode, header: resp.Header, body: string(text)}
	if resp.StatusCode == http.StatusAccepted {
		assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		return r
	}
	require.Equal(t, refusal.ProblemMediaType, resp.Header.Get("Content-Type"), r.body)
	require.NoError(t, json.Unmarshal(text, &r.problem), r.body)
	assert.Equal(t, resp.StatusCode, r.problem.Status)
	assert.Equal(t, http.StatusText(resp.StatusCode), r.problem.Title)
	assert.NotEmpty(t, r.problem.Detail)
	assert.NotEmpty(t, r.problem.Reason)
	again := resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests
	assert.Equal(t, again, resp.Header.Get("Retry-After") != "", "who is to come again learns when: %s", r.body)
	return r
}

func text(body string) io.Reader { return strings.NewReader(body) }

const attributes = `"specversion":"1.0","id":"A1","source":"/s","type":"t"`

// anEvent is a structured event.
func anEvent(id, more string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"t"` + more + `}`
}

// send posts a structured event to orders.
func (d *double) send(t testing.TB, id string, headers ...string) reply {
	t.Helper()
	return d.post(t, "orders", text(anEvent(id, "")), append([]string{"Content-Type", event.MediaType}, headers...)...)
}

// dial opens a connection and writes the beginning of a request.
func (d *double) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// answerOf reads the answer that a connection gets.
func answerOf(t testing.TB, conn net.Conn) reply {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(await.Patience)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	return readReply(t, resp)
}

const requestHead = "POST /v1/buses/orders/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/cloudevents+json\r\n"

var errBroken = errors.New("broken")
