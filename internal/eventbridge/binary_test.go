package eventbridge_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// whole is a process of Eventbridge within the test's own.
type whole struct {
	url  string // of the API
	logs *observer.ObservedLogs
	stop func()
}

// start starts one by its environment alone, and waits until it listens.
func start(t *testing.T, environ ...string) *whole {
	t.Helper()
	loaded, err := config.Load(config.Spec[eventbridge.Config]{
		Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Usage: os.Stderr,
		Environ: append(environ, "EVENTBRIDGE_HTTP_LISTEN=127.0.0.1:0", "EVENTBRIDGE_ADMIN_LISTEN=127.0.0.1:0"),
	})
	require.NoError(t, err)
	core, logs := observer.New(zapcore.InfoLevel)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	program := app.Program[eventbridge.Config]{
		Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build,
	}
	go func() { ended <- app.RunProgram(ctx, program, loaded.Config, zap.New(core)) }()
	w := &whole{logs: logs}
	stopped := false
	w.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(w.stop)
	require.Eventually(t, func() bool {
		for _, line := range logs.FilterMessage("listening").All() {
			if fields := line.ContextMap(); fields["server"] == "http" {
				w.url = "http://" + fields["address"].(string)
				return true
			}
		}
		return false
	}, await.Patience, 10*time.Millisecond)
	return w
}

// blocksOf returns the blocks of commands of a document, from a heading or another text on.
func blocksOf(t *testing.T, document, from string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../" + document)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), from)
	require.True(t, found, "%s has no %q", document, from)
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(rest, -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}

// commands runs blocks of commands in one shell, and returns the output of each. It omits lines that
// start the process, which runs already. addresses are pairs of a text and its replacement.
func commands(t *testing.T, blocks []string, addresses ...string) (answers []string) {
	t.Helper()
	for _, tool := range []string{"bash", "curl", "grep"} {
		if _, err := exec.LookPath(tool); err != nil {
			stack.Unavailable(t, tool, err)
		}
	}
	const begins = "=== block"
	script := "set -eu\ncurl() { command curl -sS \"$@\"; echo; }\n"
	for _, block := range blocks {
		script += "echo '" + begins + "'\n" + regexp.MustCompile(`(?m)^bin/eventbridge .*$`).ReplaceAllString(block, "")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*await.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", "-c", strings.NewReplacer(addresses...).Replace(script)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	answers = strings.Split(string(out), begins+"\n")[1:]
	require.Len(t, answers, len(blocks))
	return answers
}

// TestGuide runs the commands of the guide, in their order, in a whole process.
func TestGuide(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/strict") {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(hook.Close)
	w := start(t, "EVENTBRIDGE_PULSAR_URL="+srv.URL(), "EVENTBRIDGE_PULSAR_ADMIN_URL="+srv.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE="+srv.Namespace(t),
		"EVENTBRIDGE_TARGETS_ALLOW=[127.0.0.0/8]")
	blocks := blocksOf(t, "docs/eventbridge-parts/api.md", "# The API, by example")
	require.Len(t, blocks, 15)
	answers := commands(t, blocks, "http://127.0.0.1:9601", w.url, "http://127.0.0.1:8080", hook.URL)
	for i, block := range blocks {
		rest, reported := answers[i], 0
		for line := range strings.Lines(block) {
			if want, shown := strings.CutPrefix(strings.TrimSpace(line), "# -> "); shown {
				_, after, found := strings.Cut(rest, want)
				assert.True(t, found, "%s\nis not in, or not in this order in\n%s", want, answers[i])
				if reported++; found {
					rest = after
				}
			}
		}
		assert.Positive(t, reported, block)
	}
}

// TestFirstCommands runs what the first pages have, on a process of its defaults.
func TestFirstCommands(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	t.Run("ten minutes", func(t *testing.T) {
		w := start(t, "EVENTBRIDGE_PULSAR_URL="+srv.URL(), "EVENTBRIDGE_TOPICS_NAMESPACE="+srv.Namespace(t))
		blocks := blocksOf(t, "docs/eventbridge.md", "## First configuration")
		require.Len(t, blocks, 1)
		answer := commands(t, blocks, "http://127.0.0.1:9601", w.url)[0]
		for _, want := range []string{`"name":"orders"`, `"name":"log"`, `"active":true`, "HTTP/1.1 202 Accepted", `"outcome":"delivered"`} {
			require.Contains(t, answer, want)
		}
		require.Equal(t, 1, w.logs.FilterFieldKey("event").Len(), "the event is in the log")
	})
	t.Run("README", func(t *testing.T) {
		got := make(chan string, 10)
		hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- r.URL.Path + " " + string(body)
		}))
		t.Cleanup(hook.Close)
		w := start(t, "EVENTBRIDGE_PULSAR_URL="+srv.URL(), "EVENTBRIDGE_TOPICS_NAMESPACE="+srv.Namespace(t), "EVENTBRIDGE_TARGETS_ALLOW=[127.0.0.0/8]")
		var ours []string
		for _, block := range blocksOf(t, "README.md", "# ") {
			if strings.Contains(block, "/v1/buses/") {
				ours = append(ours, block)
			}
		}
		require.Len(t, ours, 1)
		commands(t, ours, "http://127.0.0.1:9601", w.url, "https://shop.example.com", hook.URL)
		select {
		case event := <-got:
			require.Contains(t, event, "/hook ")
			require.Contains(t, event, `"id":"1"`)
		case <-time.After(await.Patience):
			require.Fail(t, "the event is not delivered")
		}
	})
}

// TestTheAddressOfPulsarIsEnough: all three roles, without the admin API.
func TestTheAddressOfPulsarIsEnough(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	w := start(t, "EVENTBRIDGE_PULSAR_URL="+srv.URL(), "EVENTBRIDGE_TOPICS_NAMESPACE="+srv.Namespace(t))
	ask := func(method, path, body, kind string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", kind)
		return send(t, req)
	}
	status, answer := ask(http.MethodPut, "/v1/buses/b", `{}`, "application/json")
	require.Equal(t, 201, status, answer)
	status, answer = ask(http.MethodPut, "/v1/buses/c", `{"partitions":2}`, "application/json")
	require.Equal(t, 422, status, answer)
	require.Contains(t, answer, "pulsar.admin_url is not set")
	status, answer = ask(http.MethodPut, "/v1/buses/b/subscribers/s", `{"rules":[{"name":"r","pattern":{"type":["x"]}}],"target":{"log":{}},"order":"total"}`, "application/json")
	require.Equal(t, 201, status, answer)
	require.Eventually(t, func() bool {
		_, answer = ask(http.MethodGet, "/v1/buses/b/subscribers/s/status", "", "")
		return strings.Contains(answer, `"active":true`) && strings.Contains(answer, `"backlog":null`)
	}, await.Patience, 10*time.Millisecond, answer)
	status, answer = ask(http.MethodPost, "/v1/buses/b/events", `{"specversion":"1.0","id":"1","source":"/","type":"x"}`, "application/cloudevents+json")
	require.Equal(t, 202, status, answer)
	require.Eventually(t, func() bool {
		_, answer = ask(http.MethodGet, "/v1/buses/b/subscribers/s/deliveries", "", "")
		return strings.Contains(answer, `"outcome":"delivered"`)
	}, await.Patience, 10*time.Millisecond, answer)
	status, answer = ask(http.MethodGet, "/v1/buses/b/subscribers/s/dead-letters", "", "")
	require.Equal(t, 501, status, answer)
	require.Eventually(t, func() bool {
		return w.logs.FilterMessage("pulsar.admin_url is not set: buses have one partition, topics of deleted buses and subscribers remain, and neither backlogs nor the settings of the namespace are known").Len() == 1
	}, await.Patience, 10*time.Millisecond)

	// A page whose name leads here may neither manage nor send, nobody being asked who he is.
	for _, path := range []string{"/v1/buses", "/v1/buses/b/events"} {
		req, err := http.NewRequestWithContext(t.Context(), map[bool]string{true: http.MethodPost, false: http.MethodGet}[strings.HasSuffix(path, "events")], w.url+path,
			strings.NewReader(`{"specversion":"1.0","id":"2","source":"/","type":"x"}`))
		require.NoError(t, err)
		req.Host = "evil.example"
		req.Header.Set("Content-Type", "application/cloudevents+json")
		status, answer = send(t, req)
		require.Equal(t, 421, status, answer)
	}
}

// TestAnyInstanceKnowsOfTheDeliveriesOfOthers: one without the role tells how they are, and what
// became of a job.
func TestAnyInstanceKnowsOfTheDeliveriesOfOthers(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	both := []string{"EVENTBRIDGE_PULSAR_URL=" + srv.URL(), "EVENTBRIDGE_PULSAR_ADMIN_URL=" + srv.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE=" + srv.Namespace(t)}
	a := start(t, append(both, "EVENTBRIDGE_INSTANCE=a", "EVENTBRIDGE_ROLES=[engine, processor]")...)
	b := start(t, append(both, "EVENTBRIDGE_INSTANCE=b", "EVENTBRIDGE_ROLES=[preprocessor]")...)
	ask := func(w *whole, method, path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		_, answer := send(t, req)
		return answer
	}
	ask(b, http.MethodPut, "/v1/buses/b", `{"partitions":1}`)
	const at = "/v1/buses/b/subscribers/s"
	ask(b, http.MethodPut, at, `{"rules":[{"name":"r","pattern":{"type":["x"]}}],"target":{"log":{}}}`)
	answer := ""
	require.Eventually(t, func() bool {
		answer = ask(b, http.MethodGet, at+"/status", "")
		return strings.Contains(answer, `"instances":{"a":{"delivering":true,"breaker":"closed"}}`) && strings.Contains(answer, `"here":null`)
	}, await.Patience, 10*time.Millisecond, answer)
	require.Contains(t, ask(a, http.MethodPost, at+":replay", `{"dry_run":true}`), `"state":"running"`)
	require.Eventually(t, func() bool {
		answer = ask(b, http.MethodGet, at+"/job", "")
		return strings.Contains(answer, `"state":"done"`) && strings.Contains(answer, `"instance":"a"`)
	}, await.Patience, 10*time.Millisecond, answer)
	a.stop()
	require.Contains(t, ask(b, http.MethodGet, at+"/job", ""), `"state":"done"`)
	require.Eventually(t, func() bool {
		return !strings.Contains(ask(b, http.MethodGet, at+"/status", ""), `"instances"`)
	}, await.Patience, 10*time.Millisecond, "who has gone delivers nothing")
}

func send(t *testing.T, req *http.Request) (status int, body string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}
