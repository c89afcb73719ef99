package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/stack"
)

// still is a registry that tells the processor of no change, so that it opens no consumers: one that is given up while it opens, at a
// test's end, leaves a connection of the client underneath.
type still struct{ *registry.Store }

// Watch calls f for nothing.
func (still) Watch(func(*registry.Snapshot)) (stop func()) { return func() {} }

// starting is a processor that notes which subscribers it was to start, and replays nothing for them: the processor's own tests do.
type starting struct {
	*processor.Processor
	names []string
}

func (s *starting) Start(bus, subscriber string) (j processor.Job, began bool, err error) {
	s.names = append(s.names, bus+"/"+subscriber)
	return j, false, nil
}

// world is an API before a real registry and a real processor.
type world struct {
	url      string
	contract *contract
	router   chi.Routes
	started  *starting
}

func newWorld(t *testing.T, access api.Access) *world {
	t.Helper()
	srv := stack.Pulsar(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	client, err := messaging.Dial(ctx, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	require.NoError(t, err)
	topics := registry.Topics{Namespace: srv.Namespace(t)}
	store, err := registry.Open(ctx, client, topics, registry.Options{Partitions: true, Pulsar: registry.NewPulsar(client, topics, true)})
	require.NoError(t, err)
	status, err := registry.NewStatus(client, topics, registry.StatusOptions{Instance: "here", Roles: []string{"engine", "processor"}})
	require.NoError(t, err)
	factory, err := target.NewFactory(target.Options{Config: target.DefaultConfig(), Topics: topics})
	require.NoError(t, err)
	delivering := processor.New(processor.Options{
		Client: client, Source: still{store}, Topics: topics, Targets: factory, Admin: true, Config: processor.DefaultConfig(),
		Log: zap.NewNop(), Metrics: processor.NewMetrics(prometheus.NewRegistry()),
	})
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{store.Run, status.Run, delivering.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, store.Close(closing))
		require.NoError(t, factory.Close(closing))
		require.NoError(t, client.Close(closing))
	})
	started := &starting{Processor: delivering}
	a, err := api.New(api.Options{
		Registry: store, Processor: started, Instances: status, Access: access, Version: "1.2.3", Log: zap.NewNop(),
		Checks: registry.Checks{Target: func(g *registry.Target) (found []registry.Fault) {
			factory.Check(g, func(pointer, problem string) {
				found = append(found, registry.Fault{Pointer: pointer, Problem: problem})
			})
			return found
		}},
	})
	require.NoError(t, err)
	plain := chi.NewRouter()
	a.Routes(plain)
	document := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil)
	request.Header.Set("Authorization", "Bearer boss")
	plain.ServeHTTP(document, request)
	require.Equal(t, http.StatusOK, document.Code)
	w := &world{contract: newContract(t, document.Body.Bytes()), router: plain, started: started}
	router := chi.NewRouter()
	router.Use(keepsContract(t, w.contract))
	a.Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

const subscriber = `{"rules":[{"name":"all","pattern":{"type":[{"prefix":""}]}}],"target":{"log":{}},"order":"none"}`

// TestBusesAndSubscribers goes through the life of both. All answers are held against the document that the API serves.
func TestBusesAndSubscribers(t *testing.T) {
	w := newWorld(t, api.Access{})
	buses := w.url + "/v1/buses"

	require.JSONEq(t, `{"items":[]}`, call(t, http.MethodGet, buses, "").body)
	require.Equal(t, 404, call(t, http.MethodGet, buses+"/orders", "").status)
	made := call(t, http.MethodPut, buses+"/orders", `{"partitions":2}`)
	require.Equal(t, 201, made.status, made.body)
	tag := made.header.Get("ETag")
	require.Equal(t, 200, call(t, http.MethodPut, buses+"/orders", `{"partitions":2}`).status, "it is the same")
	require.Equal(t, 412, call(t, http.MethodPut, buses+"/orders", `{"partitions":2}`, "If-None-Match", "*").status)
	changed := call(t, http.MethodPut, buses+"/orders", `{"partitions":2,"description":"x"}`, "If-Match", tag)
	require.Equal(t, 200, changed.status, changed.body)
	stale := call(t, http.MethodPut, buses+"/orders", `{"partitions":2,"description":"y"}`, "If-Match", tag)
	require.Equal(t, 412, stale.status)
	require.Equal(t, changed.header.Get("ETag"), stale.header.Get("ETag"), "it tells the present revision")
	require.Equal(t, 422, call(t, http.MethodPut, buses+"/orders", `{"partitions":3}`).status, "partitions stay")
	require.Equal(t, 400, call(t, http.MethodPut, buses+"/orders", `{}`, "If-Match", "17").status, "an ETag has quotes")

	subs := buses + "/orders/subscribers"
	require.Equal(t, 404, call(t, http.MethodPut, buses+"/other/subscribers/a", subscriber).status)
	for _, name := range []string{"b", "a", "c"} {
		require.Equal(t, 201, call(t, http.MethodPut, subs+"/"+name, subscriber).status)
	}
	first := call(t, http.MethodGet, subs+"?limit=2", "").body
	require.Contains(t, first, `"next":"b"`)
	require.Contains(t, call(t, http.MethodGet, subs+"?limit=2&after=b", "").body, `"name":"c"`)
	require.Equal(t, 400, call(t, http.MethodGet, subs+"?limit=0", "").status)
	require.Equal(t, 409, call(t, http.MethodDelete, buses+"/orders", "").status, "it has subscribers")

	require.Contains(t, call(t, http.MethodPost, subs+"/a:pause", "").body, `"state":"paused"`)
	require.Contains(t, call(t, http.MethodPost, subs+"/a:disable", "").body, `"state":"disabled"`)
	require.Contains(t, call(t, http.MethodPost, subs+"/a:resume", "").body, `"state":"active"`)
	require.Contains(t, call(t, http.MethodGet, subs+"/a/status", "").body, `"state":"active"`)
	require.JSONEq(t, `{"items":[]}`, call(t, http.MethodGet, subs+"/a/deliveries", "").body)
	require.JSONEq(t, `{"items":[]}`, call(t, http.MethodGet, subs+"/a/dead-letters", "").body)
	require.Equal(t, 404, call(t, http.MethodGet, subs+"/a/job", "").status)
	begun := call(t, http.MethodPost, subs+"/a:replay", `{"dry_run":true}`)
	require.Equal(t, 202, begun.status, begun.body)
	require.Eventually(t, func() bool {
		return strings.Contains(call(t, http.MethodGet, w.url+begun.header.Get("Location"), "").body, `"state":"done"`)
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, 200, call(t, http.MethodDelete, subs+"/a/job", "").status)
	require.Equal(t, 202, call(t, http.MethodPost, subs+"/a:redrive", "").status)
	require.Equal(t, 400, call(t, http.MethodPost, subs+"/b:replay", `{"form":"2026-01-01T00:00:00Z"}`).status, "an unknown key")

	require.Eventually(t, func() bool {
		return strings.Contains(call(t, http.MethodGet, subs+"/a/job", "").body, `"state":"done"`)
	}, 30*time.Second, 50*time.Millisecond, "a job that is cut off may leave a connection of the client underneath")
	early := strings.Replace(subscriber, `"order"`, `"start":"earliest","order"`, 1)
	require.Equal(t, 201, call(t, http.MethodPut, subs+"/early", early).status)
	require.Equal(t, 200, call(t, http.MethodPut, subs+"/early", early).status)
	require.Equal(t, []string{"orders/b", "orders/a", "orders/c", "orders/early"}, w.started.names, "each gets what came before it, once")

	for _, name := range []string{"a", "b", "c", "early"} {
		require.Equal(t, 204, call(t, http.MethodDelete, subs+"/"+name, "").status)
	}
	require.Equal(t, 404, call(t, http.MethodGet, subs+"/a", "").status)
	require.Equal(t, 204, call(t, http.MethodDelete, buses+"/orders", "").status)
	require.Eventually(t, func() bool {
		return strings.Contains(call(t, http.MethodGet, w.url+"/v1/instances", "").body, `"here"`)
	}, 30*time.Second, 50*time.Millisecond)
}

// TestFaultsAreAllToldAtOnce: a subscriber that is wrong in several places.
func TestFaultsAreAllToldAtOnce(t *testing.T) {
	w := newWorld(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	bad := call(t, http.MethodPut, at, `{"rules":[{"name":"r","pattern":{"a":[{"prefx":"x"}]}}],"orde":"none","target":{"webhook":{"url":"ftp://x"}}}`)
	require.Equal(t, 422, bad.status, bad.body)
	var pointers []string
	for _, f := range bad.problem(t).Faults {
		pointers = append(pointers, f.Pointer)
	}
	require.ElementsMatch(t, []string{"/rules/0/pattern/a/0/prefx", "/orde", "/target/webhook/url"}, pointers, bad.body)
	require.Equal(t, 415, call(t, http.MethodPut, at, subscriber, "Content-Type", "text/plain").status)
	require.Equal(t, 415, call(t, http.MethodPut, at, subscriber, "Content-Encoding", "gzip").status)
	require.Equal(t, 413, call(t, http.MethodPut, at, strings.Repeat(" ", registry.MaxObjectBytes+2)).status)
	require.Equal(t, 422, call(t, http.MethodPut, at, `{"a":`).status)
}

// TestSecretsAreNotShown: neither when they are stored nor later, and what is shown keeps them.
func TestSecretsAreNotShown(t *testing.T) {
	w := newWorld(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	given := `{"rules":[{"name":"r","pattern":{"type":["x"]}}],"target":{"webhook":{"url":"https://example.com/","bearer":"hush-hush"}}}`
	made := call(t, http.MethodPut, at, given)
	require.Equal(t, 201, made.status, made.body)
	shown := call(t, http.MethodGet, at, "")
	for _, text := range []string{made.body, shown.body, call(t, http.MethodGet, w.url+"/v1/buses/b/subscribers", "").body} {
		require.NotContains(t, text, "hush")
	}
	again := call(t, http.MethodPut, at, shown.body)
	require.Equal(t, 200, again.status, again.body)
	require.Equal(t, shown.header.Get("ETag"), again.header.Get("ETag"), "nothing has changed")
}

func TestPatterns(t *testing.T) {
	w := newWorld(t, api.Access{})
	at := w.url + "/v1/patterns:test"
	require.JSONEq(t, `{"match":true}`, call(t, http.MethodPost, at, `{"pattern":{"a":[1]},"event":{"a":1.0,"b":2}}`).body)
	require.JSONEq(t, `{"match":false,"failed":[{"pointer":"/a","cause":"different"},{"pointer":"/c","cause":"missing"}]}`,
		call(t, http.MethodPost, at, `{"pattern":{"a":[1],"b":[2],"c":["x"]},"event":{"a":3,"b":2}}`).body)
	for body, pointer := range map[string]string{
		`{"pattern":{"a":[]},"event":{}}`:                   "/pattern/a",
		`{"pattern":{"a":[{"nothing":1}]},"event":{}}`:      "/pattern/a/0/nothing",
		`{"pattern":{"a":[1]},"event":{"x":{"b":1,"b":2}}}`: "/event",
		`{"pattern":{"a":[1]},"event":[]}`:                  "/event",
		`{"pattern":{"a":[1]}}`:                             "/event",
		`{"event":{}}`:                                      "/pattern",
		`{"pattern":{"a":[1]},"event":` + strings.Repeat(`{"a":`, 2000) + `1` + strings.Repeat(`}`, 2000) + `}`: "/event",
	} {
		got := call(t, http.MethodPost, at, body)
		require.Equal(t, 400, got.status, got.body)
		require.Equal(t, pointer, got.problem(t).Faults[0].Pointer, got.body)
	}
	require.Equal(t, 400, call(t, http.MethodPost, at, `{"pattern":{"a":[1]},"event":{},"more":1}`).status)
	require.Equal(t, 413, call(t, http.MethodPost, at, strings.Repeat(" ", 2<<20)).status)
}

// TestAccess: roles of tokens, and pages of other sites.
func TestAccess(t *testing.T) {
	tokens, err := door.NewTokens(zap.NewNop(), []door.TokenSource{
		{Tenant: api.RoleAdmin, Tokens: []secret.String{"boss"}, TokensKey: "api.tokens[0].token"},
		{Tenant: api.RoleViewer, Tokens: []secret.String{"eyes"}, TokensKey: "api.tokens[1].token"},
	})
	require.NoError(t, err)
	w := newWorld(t, api.Access{Tokens: tokens})
	at := w.url + "/v1/buses/b"
	for _, c := range []struct {
		token, method, url, body string
		want                     int
	}{
		{"", http.MethodGet, at, "", 401},
		{"bos", http.MethodPut, at, "{}", 401},
		{"eyes", http.MethodPut, at, "{}", 403},
		{"eyes", http.MethodGet, at, "", 404},
		{"eyes", http.MethodPost, w.url + "/v1/patterns:test", `{"pattern":{"a":[1]},"event":{}}`, 200},
		{"boss", http.MethodPut, at, "{}", 201},
		{"eyes", http.MethodDelete, at, "", 403},
		{"eyes", http.MethodGet, at, "", 200},
	} {
		got := call(t, c.method, c.url, c.body, "Authorization", "Bearer "+c.token)
		require.Equal(t, c.want, got.status, "%v: %s", c, got.body)
	}
	auth := []string{"Authorization", "Bearer boss"}
	for _, foreign := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		require.Equal(t, 403, call(t, http.MethodDelete, at, "", append(foreign, auth...)...).status, "%v", foreign)
	}
	require.Equal(t, 204, call(t, http.MethodDelete, at, "", append([]string{"Sec-Fetch-Site", "same-origin", "Origin", w.url}, auth...)...).status)
}

// TestDocumentIsWhole: it has each route, and no other but the preprocessor's.
func TestDocumentIsWhole(t *testing.T) {
	w := newWorld(t, api.Access{})
	want := []string{"POST /v1/buses/{bus}/events"}
	require.NoError(t, chi.Walk(w.router, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		want = append(want, method+" "+route)
		return nil
	}))
	require.ElementsMatch(t, want, w.contract.operations())
	version, _ := w.contract.at("info", "version")
	require.Equal(t, "1.2.3", version)
}
