package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/console"
	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// fixture is what the API stands on in these tests: a registry, a processor and a preprocessor, in
// memory. It is safe for concurrent use.
type fixture struct {
	url string

	mu          sync.Mutex
	revision    int64
	buses       map[string]model.Bus
	subscribers map[string]model.Subscriber // by BUS/NAME
	states      map[string]*state
	instances   []instances.Instance
	published   []string // events as they came
	senders     []string // their Authorization
	changes     []string // what was asked of the processor
}

// state is of one subscriber's deliveries.
type state struct {
	status   delivery.Status
	backlog  delivery.Backlog
	attempts []delivery.Attempt
	letters  []delivery.DeadLetter
	job      *delivery.Job
	asked    int // how often, since the job began
}

// newFixture serves the console and the API. With a token the API asks for it.
func newFixture(t *testing.T, token string) *fixture {
	t.Helper()
	w := &fixture{buses: map[string]model.Bus{}, subscribers: map[string]model.Subscriber{}, states: map[string]*state{}}
	o := api.Options{Registry: w, Processor: w, Instances: w, StoredJob: noJob, Version: "test", Log: zaptest.NewLogger(t)}
	if token != "" {
		tokens, err := bearer.NewTokens(zaptest.NewLogger(t), []bearer.Source{{Tenant: api.RoleAdmin, Tokens: []bearer.Configured{{Text: secret.String(token)}}}})
		require.NoError(t, err)
		o.Access.Tokens = tokens
	}
	a, err := api.New(o)
	require.NoError(t, err)
	r := chi.NewRouter()
	a.Routes(r)
	console.Routes(r)
	r.Post("/v1/buses/{bus}/events", w.publish)
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func noJob(string, string) json.RawMessage { return nil }

// publish answers as the preprocessor does.
func (w *fixture) publish(rw http.ResponseWriter, r *http.Request) {
	var e map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil || r.Header.Get("Content-Type") != "application/cloudevents+json" || e["type"] == nil {
		refusal.WriteProblem(rw, &refusal.Error{Status: http.StatusBadRequest, Reason: "event", Text: "the event has no attribute type"}, nil)
		return
	}
	w.mu.Lock()
	w.published = append(w.published, string(e["type"]))
	w.senders = append(w.senders, r.Header.Get("Authorization"))
	w.mu.Unlock()
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(http.StatusAccepted)
	_, _ = rw.Write([]byte(`{"id":` + string(e["id"]) + `}`))
}

// set changes what a subscriber's deliveries are.
func (w *fixture) set(bus, name string, change func(*state)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.state(bus, name))
}

func (w *fixture) state(bus, name string) *state {
	key := bus + "/" + name
	if w.states[key] == nil {
		w.states[key] = &state{status: delivery.Status{Bus: bus, Subscriber: name, Delivering: true, Breaker: delivery.BreakerClosed}}
	}
	return w.states[key]
}

// took returns what was asked of the processor, and forgets it.
func (w *fixture) took() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.changes
	w.changes = nil
	return taken
}

func (w *fixture) note(v any) {
	text, _ := json.Marshal(v)
	w.changes = append(w.changes, string(text))
}

func (w *fixture) Snapshot() *store.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot()
}

func (w *fixture) snapshot() *store.Snapshot {
	var buses []model.Bus
	var subscribers []model.Subscriber
	for _, b := range w.buses {
		buses = append(buses, b)
	}
	for _, s := range w.subscribers {
		subscribers = append(subscribers, s)
	}
	s, err := store.NewSnapshot(w.revision, buses, subscribers)
	if err != nil {
		panic(err) // the API let something in that is not valid
	}
	return s
}

// holds is what a registry does with conditions.
func holds(c store.Condition, revision int64) error {
	if c.New && revision > 0 || c.Exists && revision == 0 || c.Revision > 0 && c.Revision != revision {
		return &model.ConflictError{Revision: revision}
	}
	return nil
}

func (w *fixture) PutBus(_ context.Context, b model.Bus, c store.Condition) (*model.Bus, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, known := w.buses[b.Name]
	if err := holds(c, old.Revision); err != nil {
		return nil, false, err
	}
	if b.Partitions == 0 {
		b.Partitions = max(old.Partitions, 4*(1-min(old.Partitions, 1)))
	}
	if known && b.Partitions != old.Partitions {
		return nil, false, &model.Invalid{Faults: []model.Fault{{Pointer: "/partitions", Problem: "cannot be changed"}}}
	}
	w.revision++
	b.Revision, b.Created, b.Changed = w.revision, time.Now(), time.Now()
	w.buses[b.Name] = b
	return w.snapshot().Bus(b.Name), !known, nil
}

func (w *fixture) DeleteBus(_ context.Context, name string, c store.Condition) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := holds(c, w.buses[name].Revision); err != nil {
		return err
	}
	for key := range w.subscribers {
		if strings.HasPrefix(key, name+"/") {
			return model.ErrInUse
		}
	}
	delete(w.buses, name)
	return nil
}

func (w *fixture) PutSubscriber(_ context.Context, s model.Subscriber, c store.Condition) (*model.Subscriber, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := s.Bus + "/" + s.Name
	old, known := w.subscribers[key]
	if err := holds(c, old.Revision); err != nil {
		return nil, false, err
	}
	w.revision++
	s.Revision, s.Created, s.Changed, s.UID = w.revision, time.Now(), time.Now(), "u"+s.Name
	w.subscribers[key] = s
	return w.snapshot().Subscriber(s.Bus, s.Name), !known, nil
}

func (w *fixture) DeleteSubscriber(_ context.Context, bus, name string, c store.Condition) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := holds(c, w.subscribers[bus+"/"+name].Revision); err != nil {
		return err
	}
	delete(w.subscribers, bus+"/"+name)
	return nil
}

func (w *fixture) ChangeState(_ context.Context, bus, name string, to model.State, reason string, _ store.Condition) (*model.Subscriber, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.subscribers[bus+"/"+name]
	if !known {
		return nil, model.ErrNotFound
	}
	w.revision++
	s.State, s.Reason, s.Revision = to, reason, w.revision
	w.subscribers[bus+"/"+name] = s
	return w.snapshot().Subscriber(bus, name), nil
}

func (w *fixture) Instances() []instances.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.instances)
}

func (w *fixture) Active(revision int64) (active bool, behind []string) {
	for _, i := range w.Instances() {
		if slices.Contains(i.Roles, "engine") && i.Revision < revision {
			behind = append(behind, i.Name)
		}
	}
	return len(behind) == 0, behind
}

func (w *fixture) States(string, string) map[string]json.RawMessage { return nil }

func (w *fixture) Status(bus, name string) delivery.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state(bus, name).status
}

func (w *fixture) Attempts(bus, name string) []delivery.Attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.state(bus, name).attempts)
}

func (w *fixture) Backlog(_ context.Context, bus, name string) (delivery.Backlog, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state(bus, name).backlog, nil
}

func (w *fixture) DeadLetters(_ context.Context, bus, name string, n int) ([]delivery.DeadLetter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	letters := w.state(bus, name).letters
	return slices.Clone(letters[:min(n, len(letters))]), nil
}

func (w *fixture) Redrive(_ context.Context, bus, name string, o delivery.RedriveOptions) (delivery.Job, error) {
	return w.begin(delivery.Job{Kind: delivery.KindRedrive, Bus: bus, Subscriber: name, DryRun: o.DryRun}, o)
}

func (w *fixture) Discard(_ context.Context, bus, name string, o delivery.RedriveOptions) (delivery.Job, error) {
	return w.begin(delivery.Job{Kind: delivery.KindDiscard, Bus: bus, Subscriber: name, DryRun: o.DryRun}, o)
}

// Start has nothing to replay: no subscriber here begins in the past.
func (*fixture) Start(context.Context, string, string) (delivery.Job, bool, error) {
	return delivery.Job{}, false, nil
}

func (w *fixture) Replay(_ context.Context, bus, name string, o delivery.ReplayOptions) (delivery.Job, error) {
	return w.begin(delivery.Job{Kind: delivery.KindReplay, Bus: bus, Subscriber: name, DryRun: o.DryRun}, o)
}

func (w *fixture) begin(j delivery.Job, options any) (delivery.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(options)
	s := w.state(j.Bus, j.Subscriber)
	if s.job != nil && s.job.State == delivery.JobRunning {
		return j, delivery.ErrJobRunning
	}
	j.ID, j.State, j.Began = "1", delivery.JobRunning, time.Now()
	s.job, s.asked = &j, 0
	return j, nil
}

// Job has a job go on each time that it is asked for, and end at the third.
func (w *fixture) Job(bus, name string) (delivery.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.state(bus, name)
	if s.job == nil {
		return delivery.Job{}, delivery.ErrNoJob
	}
	if s.job.State == delivery.JobRunning {
		s.asked++
		s.job.Read, s.job.Chosen = s.job.Read+1500, s.job.Chosen+700
		switch {
		case s.job.DryRun:
		case s.job.Kind == delivery.KindDiscard:
			s.job.Discarded = s.job.Chosen
		default:
			s.job.Published = s.job.Chosen
		}
		if s.job.Kind == delivery.KindRedrive && s.asked == 3 {
			s.job.Chosen, s.job.Left = s.job.Chosen+3, delivery.Left{TooLarge: 1, Foreign: 2}
		}
		if s.asked == 3 {
			s.job.State, s.job.Ended = delivery.JobDone, time.Now()
		}
	}
	return *s.job, nil
}

func (w *fixture) CancelJob(_ context.Context, bus, name string) (delivery.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.state(bus, name)
	if s.job == nil {
		return delivery.Job{}, delivery.ErrNoJob
	}
	s.job.State, s.job.Ended = delivery.JobCanceled, time.Now()
	return *s.job, nil
}

// ask makes a request as another client of the API.
func (w *fixture) ask(t *testing.T, method, path, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	var problem map[string]any
	if answer.StatusCode >= http.StatusBadRequest {
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&problem))
	}
	require.Less(t, answer.StatusCode, http.StatusBadRequest, "%s %s: %v", method, path, problem)
}

// hostile is a text that is markup, a script and a change of direction to whoever is careless.
const hostile = `<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>{{7*7}}"'` + "\u202egnp.exe"

// fill makes two buses with subscribers as they are on an ordinary day, and one with hostile texts.
func (w *fixture) fill(t *testing.T) {
	t.Helper()
	w.ask(t, http.MethodPut, "/v1/buses/orders", `{"description": "What customers order", "partitions": 4, "dedup_window": "10m"}`)
	w.ask(t, http.MethodPut, "/v1/buses/telemetry", `{"partitions": 16, "dedup_window": "0s", "max_event_bytes": 1048576}`)
	w.ask(t, http.MethodPut, "/v1/buses/hostile", quote(map[string]any{"description": hostile, "partitions": 1}))
	put := func(name, object string) { w.ask(t, http.MethodPut, "/v1/buses/orders/subscribers/"+name, object) }
	put("billing", `{"description": "Invoices", "order": "group",
		"rules": [{"name": "paid", "pattern": {"type": ["order.paid"], "data": {"total": [{"numeric": [">", 12345678901234567890]}]}}},
			{"name": "refunds", "pattern": {"type": [{"prefix": "refund."}], "data": {"customer": {"country": [{"anything-but": ["US", "CA"]}]}}}}],
		"target": {"webhook": {"url": "https://billing.example.com/hooks/orders", "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "headers": {"X-Team": "billing"}}},
		"delivery": {"concurrency": 32, "rate": 200, "timeout": "15s", "retry": {"max_attempts": 12, "max_age": "12h", "schedule": ["1s", "10s", "1m"], "jitter": 0.2}}}`)
	put("warehouse", `{"rules": [{"name": "placed", "pattern": {"type": ["order.placed"]}}], "target": {"webhook": {"url": "https://warehouse.example.com/in"}}}`)
	put("audit-log-of-everything-that-happens-in-the-shop", `{"rules": [{"name": "all", "pattern": {"type": [{"exists": true}]}}], "target": {"pulsar": {"topic": "persistent://public/default/audit"}}}`)
	put("search-index", `{"rules": [{"name": "all", "pattern": {"source": [{"wildcard": "/shop/*"}]}}], "target": {"log": {}}}`)
	w.ask(t, http.MethodPost, "/v1/buses/orders/subscribers/search-index:pause", "")
	w.ask(t, http.MethodPut, "/v1/buses/hostile/subscribers/victim", quote(map[string]any{
		"description": hostile, "target": map[string]any{"webhook": map[string]any{"url": "https://example.com/?" + "javascript:alert(1)", "headers": map[string]string{"X-A": "b"}}},
		"rules":     []any{map[string]any{"name": "all", "pattern": map[string]any{"type": []string{hostile}, hostile: []string{hostile}}}},
		"transform": map[string]any{"template": hostile},
	}))

	now := time.Now()
	w.set("orders", "billing", func(s *state) {
		s.backlog = delivery.Backlog{Events: 1284, Oldest: now.Add(-42 * time.Second), DeadLetters: 3}
		s.status.InFlight = 32
		s.attempts = attempts(now)
		s.letters = letters(now)
	})
	w.set("orders", "warehouse", func(s *state) {
		s.backlog = delivery.Backlog{Events: 91022, Oldest: now.Add(-3*time.Hour - 4*time.Minute), DeadLetters: 17}
		s.status.Breaker, s.status.ProbeAt, s.status.Unhealthy = delivery.BreakerOpen, now.Add(20*time.Second), "connect: connection refused"
	})
	w.set("hostile", "victim", func(s *state) {
		s.status.Unhealthy = hostile
		s.attempts = []delivery.Attempt{{Time: now, Event: hostile, Source: hostile, Type: hostile, Attempt: 1, Outcome: hostile, Reason: hostile, Error: hostile}}
		s.letters = []delivery.DeadLetter{{Event: json.RawMessage(quote(map[string]any{"id": hostile, "type": hostile, "data": hostile, hostile: hostile})), Reason: hostile, Attempts: 1}}
		s.job = &delivery.Job{ID: hostile, Kind: hostile, State: hostile, Error: hostile}
	})
	w.set("hostile", "", func(s *state) {
		s.letters = []delivery.DeadLetter{{Bytes: []byte("\xff" + hostile), Reason: hostile, Attempts: 1}}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NoError(t, json.Unmarshal([]byte(quote([]any{
		map[string]any{
			"name": "eventbridge-0", "roles": []string{"preprocessor", "engine", "processor"}, "version": "1.4.0", "started": now.Add(-50 * time.Hour), "seen": now,
			"revision": w.revision, "partitions": map[string]any{"orders": []int{0, 1}, "telemetry": []int{0, 1, 2, 3, 4, 5, 6, 7}},
		},
		map[string]any{"name": "eventbridge-1", "roles": []string{"engine"}, "version": "1.4.0", "started": now.Add(-2 * time.Minute), "seen": now.Add(-4 * time.Second), "revision": 6},
		map[string]any{"name": hostile, "roles": []string{"preprocessor"}, "version": hostile, "started": now, "seen": now},
	})), &w.instances))
}

func quote(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func attempts(now time.Time) []delivery.Attempt {
	list := []delivery.Attempt{
		{Event: "8c1f7a52-6a0d-4b8e-9d4d-1f0f6c1b2a33", Type: "order.paid", Attempt: 1, Outcome: "delivered", Status: 200, Latency: 18 * time.Millisecond},
		{Event: "1f3b9d10-53c4-47a9-8a52-5cf3c8d1b7aa", Type: "refund.requested", Attempt: 2, Outcome: "retry", Reason: "status", Status: 503, Latency: 1204 * time.Millisecond, Error: "the target answered 503 Service Unavailable", Next: now.Add(10 * time.Second)},
		{Event: "e0a1c7b2-2b1c-4a6e-8f7b-0c9d8e7f6a5b", Type: "order.paid", Attempt: 12, Outcome: "dead_letter", Reason: "timeout", Latency: 15 * time.Second, Error: "12 attempts: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"},
		{Event: "b7e6d5c4-a3b2-4c1d-9e8f-7a6b5c4d3e2f", Type: "order.paid", Attempt: 1, Outcome: "delivered", Status: 204, Latency: 9 * time.Millisecond, Batch: 25},
	}
	for i := range list {
		list[i].Source, list[i].Time = "/shop/web", now.Add(-time.Duration(3*i)*time.Second)
	}
	return list
}

func letters(now time.Time) []delivery.DeadLetter {
	var list []delivery.DeadLetter
	for i, reason := range []string{"12 attempts: the target answered 503 Service Unavailable", "the target answered 422 Unprocessable Entity", "older than 12h: dial tcp 203.0.113.9:443: connect: connection refused"} {
		list = append(list, delivery.DeadLetter{
			Event:  json.RawMessage(`{"specversion":"1.0","id":"1042-` + string(rune('a'+i)) + `","source":"/shop/web","type":"order.paid","time":"2026-01-15T09:30:00Z","partitionkey":"customer-17","data":{"total":12345678901234567890,"currency":"EUR"}}`),
			Reason: reason, Attempts: 12 - 5*i, FirstFailed: now.Add(-time.Duration(i+1) * time.Hour), GivenUp: now.Add(-time.Duration(i) * time.Hour),
		})
	}
	return list
}
