package api_test

import (
	"context"
	"encoding/json"
	"fmt"
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

	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// still is a registry that tells the processor of no change, so that it opens no consumers: one
// that is given up while it opens, at a test's end, leaves a connection of the client underneath.
type still struct{ *store.Store }

// Watch calls f for nothing.
func (still) Watch(func(*store.Snapshot)) (stop func()) { return func() {} }

// starting is a processor that notes which subscribers it was to start, and replays nothing for
// them: the processor's own tests do.
type starting struct {
	*delivery.Processor
	names []string
}

func (s *starting) Start(_ context.Context, bus, subscriber string) (j delivery.Job, began bool, err error) {
	s.names = append(s.names, bus+"/"+subscriber)
	return j, false, nil
}

// fixture is an API before a real registry and a real processor.
type fixture struct {
	url      string
	contract *contract
	router   chi.Routes
	started  *starting
	store    *store.Store
}

func newFixture(t *testing.T, access api.Access) *fixture {
	t.Helper()
	srv := stack.Pulsar(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	client, err := messaging.Dial(ctx, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	require.NoError(t, err)
	topics := model.Topics{Namespace: srv.Namespace(t)}
	store, err := store.Open(ctx, client, topics, store.Options{Partitions: true, Pulsar: store.NewPulsar(client, topics, true)})
	require.NoError(t, err)
	status, err := instances.NewStatus(client, topics, instances.StatusOptions{Instance: "here", Roles: []string{"engine", "processor"}})
	require.NoError(t, err)
	factory, err := target.NewFactory(target.Options{Config: target.Config{}, Topics: topics})
	require.NoError(t, err)
	delivering := delivery.New(delivery.Options{
		Client: client, Source: still{store}, Topics: topics, Targets: factory, Instance: "here", Instances: status, Config: delivery.DefaultConfig(),
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(),
	})
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{store.Run, status.Run, delivering.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
		closing, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, store.Close(closing))
		require.NoError(t, factory.Close(closing))
		require.NoError(t, client.Close(closing))
	})
	require.Eventually(t, func() bool { return len(status.Instances()) == 1 }, await.Patience, 10*time.Millisecond,
		"one that is given up while it opens may leave a connection of the client underneath")
	started := &starting{Processor: delivering}
	options := api.Options{
		Registry: store, Processor: started, Instances: status, StoredJob: store.Job, Access: access, Version: "1.2.3", Log: zap.NewNop(),
		Checks: model.Checks{Target: factory.Check},
	}
	a, err := api.New(options)
	require.NoError(t, err)
	plain := chi.NewRouter()
	a.Routes(plain)
	document := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, "http://localhost/v1/openapi.json", nil)
	request.Header.Set("Authorization", "Bearer boss")
	plain.ServeHTTP(document, request)
	require.Equal(t, http.StatusOK, document.Code)
	w := &fixture{contract: newContract(t, document.Body.Bytes()), router: plain, started: started, store: store}
	router := chi.NewRouter()
	router.Use(keepsContract(t, w.contract))
	a.Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

const subscriber = `{"rules":[{"name":"all","pattern":{"type":[{"prefix":""}]}}],"target":{"log":{}},"order":"none"}`

// TestBusesAndSubscribers goes through the life of both. All answers are held against the document
// that the API serves.
func TestBusesAndSubscribers(t *testing.T) {
	w := newFixture(t, api.Access{})
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
	}, await.Patience, 10*time.Millisecond)
	require.Equal(t, 200, call(t, http.MethodDelete, subs+"/a/job", "").status)
	require.Equal(t, 202, call(t, http.MethodPost, subs+"/a:redrive", "").status)
	require.Equal(t, 400, call(t, http.MethodPost, subs+"/b:replay", `{"form":"2026-01-01T00:00:00Z"}`).status, "an unknown key")

	require.Eventually(t, func() bool {
		return strings.Contains(call(t, http.MethodGet, subs+"/a/job", "").body, `"state":"done"`)
	}, await.Patience, 10*time.Millisecond, "a job that is cut off may leave a connection of the client underneath")
	for _, at := range []string{subs + "/a", buses + "/orders"} { // a bus has dead letters, too
		require.JSONEq(t, `{"items":[]}`, call(t, http.MethodGet, at+"/dead-letters?limit=100", "").body)
		require.Equal(t, 400, call(t, http.MethodGet, at+"/dead-letters?limit=101", "").status)
		for _, wrong := range []string{"reson=x", "reason=", "type=a&type=b", "from=yesterday", "to=1", "max=x", "rate=x", "rate=NaN", "dry_run=maybe", "%zz", "reason=x;type=y"} {
			require.Equal(t, 400, call(t, http.MethodDelete, at+"/dead-letters?"+wrong, "").status, "%s: nothing is chosen by mistake", wrong)
		}
		for _, body := range []string{`{"type":"a","dry_run":true}`, `{}`} {
			require.Equal(t, 400, call(t, http.MethodDelete, at+"/dead-letters", body).status, "a filter that is not in the address")
		}
		for _, wrong := range []string{"max=-1", "rate=-1", "reason=" + strings.Repeat("%3C", 1000)} {
			require.Equal(t, 422, call(t, http.MethodDelete, at+"/dead-letters?"+wrong, "").status, wrong)
		}
		begun := call(t, http.MethodDelete, at+"/dead-letters?reason=x&type=a&from=2026-01-01T00:00:00Z&to=2999-01-01T00:00:00Z&rate=1.5&max=3&dry_run=true", "")
		require.Equal(t, 202, begun.status, begun.body)
		require.Equal(t, strings.TrimPrefix(at, w.url)+"/job", begun.header.Get("Location"))
		require.Eventually(t, func() bool {
			body := call(t, http.MethodGet, at+"/job", "").body
			return strings.Contains(body, `"kind":"discard"`) && strings.Contains(body, `"state":"done"`)
		}, await.Patience, 10*time.Millisecond)
		require.Equal(t, 200, call(t, http.MethodDelete, at+"/job", "").status)
	}
	require.Equal(t, 404, call(t, http.MethodGet, buses+"/other/dead-letters", "").status)
	require.Equal(t, 404, call(t, http.MethodDelete, buses+"/other/dead-letters", "").status)
	require.Equal(t, 404, call(t, http.MethodGet, buses+"/other/job", "").status)
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
	}, await.Patience, 10*time.Millisecond)
}

// TestFaultsAreAllToldAtOnce: a subscriber that is wrong in several places.
func TestFaultsAreAllToldAtOnce(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	bad := call(t, http.MethodPut, at, `{"rules":[{"name":"r","pattern":{"a":[{"prefx":"x"}]}}],"orde":"none","target":{"webhook":{"url":"ftp://x"}}}`)
	require.Equal(t, 422, bad.status, bad.body)
	var pointers []string
	for _, f := range bad.problem(t).Faults {
		pointers = append(pointers, f.Pointer)
	}
	require.ElementsMatch(t, []string{"/rules/0/pattern/a/0/prefx", "/orde", "/target/webhook/url"}, pointers, bad.body)
	long := call(t, http.MethodPut, at, `{"`+strings.Repeat("k", 100<<10)+`":1}`)
	require.Equal(t, 422, long.status)
	require.Less(t, len(long.body), 4<<10, "what was given is not given back whole")
	require.Equal(t, 415, call(t, http.MethodPut, at, subscriber, "Content-Type", "text/plain").status)
	require.Equal(t, 415, call(t, http.MethodPut, at, subscriber, "Content-Encoding", "gzip").status)
	require.Equal(t, 413, call(t, http.MethodPut, at, strings.Repeat(" ", model.MaxObjectBytes+2)).status)
	require.Equal(t, 422, call(t, http.MethodPut, at, `{"a":`).status)
}

// TestSecretsAreNotShown: neither when they are stored nor later, and what is shown keeps them.
func TestSecretsAreNotShown(t *testing.T) {
	w := newFixture(t, api.Access{})
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
	w := newFixture(t, api.Access{})
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
	long := call(t, http.MethodPost, at, `{"pattern":{"`+strings.Repeat("k", 100<<10)+`":[]},"event":{}}`)
	require.Equal(t, 400, long.status)
	require.Less(t, len(long.body), 4<<10, "what was given is not given back whole")
	require.Equal(t, 413, call(t, http.MethodPost, at, strings.Repeat(" ", 2<<20)).status)
}

// TestAccess: roles of tokens, and pages of other sites.
func TestAccess(t *testing.T) {
	tokens, err := bearer.NewTokens(zap.NewNop(), []bearer.Source{
		{Tenant: api.RoleAdmin, Tokens: bearer.List([]secret.String{"boss"}, "api.tokens[0].token")},
		{Tenant: api.RoleViewer, Tokens: bearer.List([]secret.String{"eyes"}, "api.tokens[1].token")},
	})
	require.NoError(t, err)
	w := newFixture(t, api.Access{Tokens: tokens})
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

// TestNamesThatLeadHereAreNotEnough: a page whose name leads to this process is of the API's own
// site to a browser.
func TestNamesThatLeadHereAreNotEnough(t *testing.T) {
	w := newFixture(t, api.Access{Hosts: httpserver.Hosts{"events.example.com"}})
	asked := func(method, host string, headers ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, w.url+"/v1/buses", nil)
		require.NoError(t, err)
		req.Host = host
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	for _, host := range []string{"evil.example:9601", "127.0.0.1.evil.example"} {
		require.Equal(t, 421, asked(http.MethodGet, host), host)
		require.Equal(t, 421, asked(http.MethodGet, host, "Sec-Fetch-Site", "same-origin", "Origin", "http://"+host), host)
	}
	for _, host := range []string{"localhost:9601", "eventbridge", "[::1]:9601", "events.example.com"} {
		require.Equal(t, 200, asked(http.MethodGet, host), host)
	}
}

// TestConditions: the forms that ETags may come in.
func TestConditions(t *testing.T) {
	w := newFixture(t, api.Access{})
	at := w.url + "/v1/buses/b"
	require.Equal(t, 201, call(t, http.MethodPut, at, `{}`).status) // revision 1
	subs := at + "/subscribers/s"
	require.Equal(t, 201, call(t, http.MethodPut, subs, subscriber).status) // 2
	for text, want := range map[string]int{
		`"2"`: 200, `*`: 200,
		`"1"`:     412,
		`"1","2"`: 400, `W/"2"`: 400, `2`: 400, `"2`: 400, `"+2"`: 400, `"02"`: 400, `"x"`: 400, ``: 400, `"2",*`: 400, `"99999999999999999999"`: 400,
	} {
		require.Equal(t, want, call(t, http.MethodPut, subs, subscriber, "If-Match", text).status, text)
	}
	require.Equal(t, 400, call(t, http.MethodPut, subs, subscriber, "If-None-Match", `"2"`).status)
	require.Equal(t, 412, call(t, http.MethodPost, subs+":pause", "", "If-Match", `"1"`).status, "a condition holds for each change")
	require.Contains(t, call(t, http.MethodGet, subs, "").body, `"state":"active"`)
	require.Equal(t, 200, call(t, http.MethodPost, subs+":pause", "", "If-Match", `"2"`).status)
	require.Equal(t, 412, call(t, http.MethodDelete, subs, "", "If-Match", `"2"`).status)
	require.Equal(t, 412, call(t, http.MethodPut, at+"x", `{}`, "If-Match", `"2"`).status, "there is none")
}

// TestAPageEndsBeforeItIsLarge: objects may have half a mebibyte each.
func TestAPageEndsBeforeItIsLarge(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	large := fmt.Sprintf(`{"rules":[{"name":"all","pattern":{"type":[{"prefix":%q}]}}],"target":{"log":{}},"transform":{"template":%q}}`, "<&>", strings.Repeat("<", 400<<10))
	for i := range 8 {
		made := call(t, http.MethodPut, fmt.Sprintf("%s/v1/buses/b/subscribers/s%d", w.url, i), large)
		require.Equal(t, 201, made.status, made.body[:min(len(made.body), 1000)])
	}
	after, seen := "", 0
	for pages := 1; ; pages++ {
		got := call(t, http.MethodGet, w.url+"/v1/buses/b/subscribers?limit=1000&after="+after, "")
		require.Equal(t, 200, got.status)
		require.Less(t, len(got.body), 3<<20)
		var page struct {
			Items []struct{ Name string }
			Next  string
		}
		require.NoError(t, json.Unmarshal([]byte(got.body), &page))
		seen += len(page.Items)
		if after = page.Next; after == "" {
			require.Equal(t, 2, pages)
			break
		}
	}
	require.Equal(t, 8, seen)
}

// TestJobsThatCannotBe: what a client has to mend is not told to come again.
func TestJobsThatCannotBe(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	require.Equal(t, 201, call(t, http.MethodPut, at, subscriber).status)
	for _, path := range []string{":redrive?dry_run=true", ":replay?from=2026-01-01T00:00:00Z&dry_run=true"} {
		require.Equal(t, 400, call(t, http.MethodPost, at+path, "").status, path)
	}
	for _, c := range [][2]string{{":replay", `{"rate":-1}`}, {":replay", `{"from":"2999-01-01T00:00:00Z"}`}, {":redrive", `{"rate":-1}`}, {":redrive", `{"max":-1}`}} {
		got := call(t, http.MethodPost, at+c[0], c[1])
		require.Equal(t, 422, got.status, got.body)
	}
}

// TestOptionsThatAreNone: what is wrong with the options of a job is said in words of the API.
func TestOptionsThatAreNone(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	require.Equal(t, 201, call(t, http.MethodPut, at, subscriber).status)
	for body, want := range map[string]string{
		`{"reson":"x"}`:      `/reson: unknown key; the keys here are dry_run, from, max, rate, reason, to, type`,
		`{"from":"gestern"}`: "/from: must be a time such as 2026-01-02T15:04:05Z",
		`{"from":5}`:         "/from: must be a text, got 5",
		`{"rate":"5"}`:       "/rate: must be a number, got a text",
		`{"max":1.5}`:        "/max: must be a whole number, got 1.5",
		`{"dry_run":1}`:      "/dry_run: must be true or false, got 1",
		`[]`:                 ": must be an object, got a list",
		`{"rate":`:           ": must be one JSON object: offset 8: unexpected end of JSON input",
		` `:                  ": must be one JSON object: offset 1: unexpected end of JSON input",
		`null`:               ": must be an object, got null",
	} {
		got := call(t, http.MethodPost, at+":redrive", body)
		require.Equal(t, 400, got.status, body)
		faults := got.problem(t).Faults
		require.Len(t, faults, 1)
		require.Equal(t, want, faults[0].Pointer+": "+faults[0].Problem, body)
	}
}

// An option without its value would select everything, and a condition that nobody checks would
// seem to hold.
func TestOptionsWithoutAValue(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	require.Equal(t, 201, call(t, http.MethodPut, at, subscriber).status)
	for _, body := range []string{
		`{"type":""}`, `{"type": null}`, `{"Type":""}`, `{"type":"x","type":""}`, `{"reason":""}`, `{"from":null}`, `{"to":"0001-01-01T00:00:00Z"}`,
		`{"to":"0001-01-01T01:00:00+01:00"}`, `{"max":null}`, `{"dry_run":null}`,
	} {
		got := call(t, http.MethodPost, at+":redrive", body)
		require.Equal(t, 400, got.status, body)
		require.Contains(t, got.body, "must have a value, or be omitted", body)
	}
	require.Equal(t, 400, call(t, http.MethodPost, at+":replay", `{"to":null}`).status)
	for _, query := range []string{"type=", "reason=", "to=", "dry_run=", "max=", "to=0001-01-01T00:00:00Z", "from=0001-01-01T00:00:00Z"} {
		for _, path := range []string{at, w.url + "/v1/buses/b"} {
			got := call(t, http.MethodDelete, path+"/dead-letters?"+query, "")
			require.Equal(t, 400, got.status, query)
			require.Contains(t, got.body, "must have a value, or be omitted", query)
		}
	}
	for _, header := range []string{"If-Match", "If-None-Match"} {
		for path, method := range map[string]string{
			":redrive": http.MethodPost, ":replay": http.MethodPost, "/dead-letters": http.MethodDelete, "/job": http.MethodDelete,
		} {
			got := call(t, method, at+path, "", header, "*")
			require.Equal(t, 400, got.status, path)
			require.Contains(t, got.body, "neither If-Match nor If-None-Match", path)
		}
	}
}

// TestJobsOfOtherProcesses: what became of them is told, also when their process has gone.
func TestJobsOfOtherProcesses(t *testing.T) {
	w := newFixture(t, api.Access{})
	require.Equal(t, 201, call(t, http.MethodPut, w.url+"/v1/buses/b", `{}`).status)
	at := w.url + "/v1/buses/b/subscribers/s"
	require.Equal(t, 201, call(t, http.MethodPut, at, subscriber).status)
	uid := w.store.Snapshot().Subscriber("b", "s").UID
	kept := func(instance, state string, began time.Time) {
		text := fmt.Sprintf(`{"id":"x1","kind":"replay","state":%q,"began":%q,"read":3,"chosen":2,"published":1,"left":{"too_large":1},"instance":%q}`, state, began.Format(time.RFC3339Nano), instance)
		require.NoError(t, w.store.ChangeJob(t.Context(), "b", "s", uid, func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage(text), nil }))
	}
	kept("gone", "running", time.Now())
	got := call(t, http.MethodGet, at+"/job", "")
	require.Equal(t, 200, got.status)
	require.Contains(t, got.body, `"state":"interrupted"`)
	require.Contains(t, got.body, `"instance":"gone"`)
	require.Contains(t, got.body, `"left":{"too_large":1}`)
	kept("here", "running", time.Now().Add(-time.Hour))
	require.Contains(t, call(t, http.MethodGet, at+"/job", "").body, `"state":"interrupted"`, "the process that has the name was started later")
	kept("here", "running", time.Now())
	require.Contains(t, call(t, http.MethodGet, at+"/job", "").body, `"state":"running"`)
	canceled := call(t, http.MethodDelete, at+"/job", "")
	require.Equal(t, 200, canceled.status, canceled.body)
	require.Contains(t, call(t, http.MethodGet, at+"/job", "").body, `"state":"canceled"`, "whichever process runs it")
	kept("here", "done", time.Now())
	require.Contains(t, call(t, http.MethodGet, at+"/job", "").body, `"state":"done"`)
	require.Equal(t, 404, call(t, http.MethodDelete, at+"/job", "").status)
	require.Equal(t, 202, call(t, http.MethodPost, at+":replay", `{"dry_run":true}`).status)
	done := func(url string) {
		require.Eventually(t, func() bool {
			body := call(t, http.MethodGet, url+"/job", "").body
			return strings.Contains(body, `"state":"done"`) && !strings.Contains(body, "x1")
		}, await.Patience, 10*time.Millisecond, "its own is the latest")
	}
	done(at)

	// A job of this process that has ended is kept as one that runs for up to a second: others are
	// not refused for that.
	kept("here", "running", time.Now().Add(-time.Millisecond))
	require.Equal(t, 200, call(t, http.MethodDelete, at+"/job", "").status)
	begun := call(t, http.MethodPost, at+":replay", `{"dry_run":true}`)
	require.Equal(t, 202, begun.status, begun.body)
	done(at)
}

// TestAllAnswersThatAreNoSuccessAreProblems: those of addresses and methods that there are not,
// too.
func TestAllAnswersThatAreNoSuccessAreProblems(t *testing.T) {
	a, err := api.New(api.Options{Log: zap.NewNop()})
	require.NoError(t, err)
	router := chi.NewRouter()
	a.Routes(router)
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	for path, allow := range map[string][]string{"/v1/nothing": nil, "/v1/buses/": nil, "/v1/buses": {"GET"}, "/v1/buses/b/subscribers/s:frob": nil} {
		got := call(t, http.MethodPost, server.URL+path, `{}`)
		want := http.StatusNotFound
		if allow != nil {
			want = http.StatusMethodNotAllowed
		}
		require.Equal(t, want, got.status, path)
		require.Equal(t, want, got.problem(t).Status)
		require.Equal(t, allow, got.header.Values("Allow"))
	}
}

// TestDocumentIsWhole: it has each route, and no other but the preprocessor's.
func TestDocumentIsWhole(t *testing.T) {
	w := newFixture(t, api.Access{})
	want := []string{"POST /v1/buses/{bus}/events", "OPTIONS /v1/buses/{bus}/events"}
	require.NoError(t, chi.Walk(w.router, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		want = append(want, method+" "+route)
		return nil
	}))
	require.ElementsMatch(t, want, w.contract.operations())
	version, _ := w.contract.at("info", "version")
	require.Equal(t, "1.2.3", version)
}
