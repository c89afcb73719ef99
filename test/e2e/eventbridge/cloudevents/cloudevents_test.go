package cloudevents

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/languages"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

//go:embed python node java
var sources embed.FS

func TestMain(m *testing.M) {
	systems.Main(m, func() int {
		return app.Main(app.Program[eventbridge.Config]{
			Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build,
		})
	})
}

// The modes of CloudEvents over HTTP.
const (
	binary     = "binary"
	structured = "structured"
	batch      = "batch"
)

// An sdk is one with its program.
type sdk struct {
	name           string
	sends          []string // modes
	receives       []string // modes
	program        languages.Program
	decodes        bool // percent signs in headers
	onlyLatin1     bool // in headers that its HTTP client sends
	alwaysWithType bool // sets Content-Type in binary mode even if there is no data
	capitalBools   bool // writes True in headers
}

func sdks() []sdk {
	single := []string{binary, structured}
	all := []string{binary, structured, batch}
	const cache = "cloudevents"
	jars := languages.Jars{
		Name: "cloudevents-" + sdkJava, Sum: sdkJavaSum,
		Coordinates: "io.cloudevents:cloudevents-http-basic:" + sdkJava + " io.cloudevents:cloudevents-json-jackson:" + sdkJava,
	}
	return []sdk{
		{name: "go", sends: all, receives: all, program: languages.Go("test/e2e/eventbridge/cloudevents/gosdk")},
		{name: "java", sends: single, receives: single, program: languages.Java(cache, "Sdk", jars), onlyLatin1: true},
		{name: "javascript", sends: single, receives: all, program: languages.Node(cache, "sdk.mjs"), onlyLatin1: true, alwaysWithType: true},
		{name: "python", sends: single, receives: single, program: languages.Python(cache, "sdk.py"), decodes: true, capitalBools: true},
	}
}

// The version of sdk-java, and the digest of its jars and those they need, see [stack.Stack.Jars].
const (
	sdkJava    = "4.0.1"
	sdkJavaSum = "e9044de7004777918094b6029031abe919dc03e0a3943a7c93ba6e6f1cbc011d17f03e7a6858edd8d9d84fcdc13c2611984d3ccba841c9362ed5965afdd7c0d8"
)

// An event is as the programs read and print it.
type event struct {
	Attributes map[string]any `json:"attributes"`
	Data       []byte         `json:"data"`
}

func (e event) id() string { return fmt.Sprint(e.Attributes["id"]) }

const eventType = "sdk.test"

// events are what an SDK sends in a mode. JavaScript knows milliseconds of a time, and adds one
// where there is none.
func (s sdk) events(mode string) (out []event) {
	add := func(name string, data []byte, attributes map[string]any) {
		maps.Copy(attributes, map[string]any{"specversion": "1.0", "id": fmt.Sprintf("%s-%s-%s", s.name, mode, name), "type": eventType})
		out = append(out, event{attributes, data})
	}
	add("json", []byte(`{"name":"Zoë \"%41\"","list":[1,2.5,null,true],"deep":{"%":{}}}`), map[string]any{
		"source": "/p?q=a%20b", "subject": `Grüße, "Anna" 100%`, "time": "2026-11-26T17:00:00.123Z", "datacontenttype": "application/json",
		"dataschema": "https://example.com/a%20b#c", "flag": true, "count": -5.0, "note": "100% a, b; c=d", "link": "https://example.com/?a=1&b=2",
	})
	add("text", []byte("Grüße €\n\"a\" %41\n"), map[string]any{
		"source": "https://example.com/%C3%BC", "time": "2026-11-26T18:00:00.25+01:00", "datacontenttype": "text/plain; charset=utf-8",
	})
	add("bytes", []byte("\x00\xff\xfe%\x80\r\n"), map[string]any{
		"source": "urn:a:b%3C%5B", "subject": `a "b`, "time": "2026-11-26T17:00:00Z", "datacontenttype": "application/octet-stream",
	})
	add("nothing", nil, map[string]any{"source": "/", "subject": "%", "time": "2026-11-26T17:00:00Z"})
	if mode != binary || !s.onlyLatin1 {
		add("unicode", nil, map[string]any{"source": "/", "subject": "Euro € 😀 100%", "time": "2026-11-26T17:00:00Z"})
	}
	return out
}

// expected is what an SDK reads in a mode of an event that another has sent in a mode.
func expected(from sdk, sent string, to sdk, received string, e event) event {
	out := event{maps.Clone(e.Attributes), e.Data}
	if from.alwaysWithType && sent == binary && out.Attributes["datacontenttype"] == nil {
		out.Attributes["datacontenttype"] = "application/json; charset=utf-8"
	}
	if from.capitalBools && sent == binary && out.Attributes["flag"] == true {
		out.Attributes["flag"] = "True"
	}
	for name, value := range out.Attributes {
		if sent == binary || received == binary { // headers have no types
			value = fmt.Sprint(value)
		}
		if text, ok := value.(string); ok && received == binary && !to.decodes && name != "datacontenttype" {
			value = percentEncoded(text)
		}
		out.Attributes[name] = value
	}
	return out
}

// percentEncoded is what the HTTP binding makes of a value.
func percentEncoded(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&out, "%%%02X", c)
		} else {
			out.WriteByte(c)
		}
	}
	return out.String()
}

// same compares attribute by attribute: times as times, and data that is JSON as JSON.
func same(t *testing.T, want, got event) {
	t.Helper()
	for _, e := range []event{want, got} {
		at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(e.Attributes["time"]))
		require.NoError(t, err)
		e.Attributes["time"] = at.UTC()
	}
	assert.Equal(t, want.Attributes, got.Attributes)
	if want.Attributes["datacontenttype"] == "application/json" {
		assert.JSONEq(t, string(want.Data), string(got.Data))
	} else {
		assert.Equal(t, string(want.Data), string(got.Data))
	}
}

// A program is one that runs.
type program struct {
	sdk
	in     io.Writer
	ended  chan struct{} // closed when it prints no more
	stderr bytes.Buffer  // once it has ended

	mu       sync.Mutex
	address  string
	answers  []line
	received map[string]event // by mode and id
	refused  []line
}

// A line is one that a program prints, see doc.go.
type line struct {
	Listening string   `json:"listening"`
	Sent      []string `json:"sent"`
	Status    int      `json:"status"`
	Answer    string   `json:"answer"`
	Path      string   `json:"path"`
	Events    []event  `json:"events"`
	Error     string   `json:"error"`
}

// begin starts the program of an SDK, which sends to url.
func begin(t *testing.T, s sdk, url string) *program {
	t.Helper()
	cmd := languages.Prepare(t, s.name, sources, s.program).Cmd(context.WithoutCancel(t.Context()), url)
	p := &program{sdk: s, ended: make(chan struct{}), received: map[string]event{}}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.in = in
	go p.read(out)
	t.Cleanup(func() {
		_ = in.Close()
		select {
		case <-p.ended:
		case <-time.After(await.Patience):
			_ = cmd.Cancel()
		}
		err := cmd.Wait()
		assert.NoError(t, err, s.name)
		if t.Failed() {
			t.Logf("%s wrote: %s", s.name, languages.Tail(p.stderr.String(), 20))
		}
	})
	return p
}

func (p *program) read(out io.Reader) {
	defer close(p.ended)
	for lines := json.NewDecoder(out); ; {
		var l line
		if lines.Decode(&l) != nil {
			return
		}
		p.take(l)
	}
}

func (p *program) take(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.Listening != "":
		p.address = l.Listening
	case l.Sent != nil:
		p.answers = append(p.answers, l)
	case l.Error != "":
		p.refused = append(p.refused, l)
	}
	for _, e := range l.Events {
		p.received[strings.TrimPrefix(l.Path, "/")+" "+e.id()] = e
	}
}

// awaits waits until is holds.
func (p *program) awaits(t *testing.T, what string, is func() bool) {
	t.Helper()
	systems.Await(t, await.Patience, p.name+": "+what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return is()
	})
}

// send has the program send its events in a mode, and waits for the answers.
func (p *program) send(t *testing.T, mode string) {
	t.Helper()
	requests := slices.Collect(slices.Chunk(p.events(mode), 1))
	if mode == batch {
		requests = [][]event{p.events(mode)}
	}
	for _, events := range requests {
		require.NoError(t, json.NewEncoder(p.in).Encode(map[string]any{"mode": mode, "events": events}))
	}
	p.awaits(t, "answers", func() bool { return len(p.answers) == len(requests) })
	for _, l := range p.answers {
		require.Equal(t, http.StatusAccepted, l.Status, "%s: %s", l.Sent, l.Answer)
	}
	p.answers = nil
}

// TestOfficialSDKs: each SDK sends events in each of its modes, and each reads all of them in each
// of its modes as they were sent. In binary mode those that do not decode headers read them
// encoded.
func TestOfficialSDKs(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	service := systems.Run(t, nil, []string{
		"EVENTBRIDGE_HTTP_LISTEN=127.0.0.1:0", "EVENTBRIDGE_ADMIN_LISTEN=127.0.0.1:0", "EVENTBRIDGE_PULSAR_URL=" + server.URL(),
		"EVENTBRIDGE_PULSAR_ADMIN_URL=" + server.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE=" + server.Namespace(t), "EVENTBRIDGE_TARGETS_ALLOW=[127.0.0.0/8]",
	})
	bus := "http://" + service.Address("http") + "/v1/buses/sdks"
	var programs []*program
	for _, s := range sdks() {
		programs = append(programs, begin(t, s, bus+"/events"))
	}
	put(t, bus, map[string]any{"partitions": 1})
	for _, p := range programs {
		p.awaits(t, "listens", func() bool { return p.address != "" })
		for _, mode := range p.receives {
			subscriber := bus + "/subscribers/" + p.name + "-" + mode
			put(t, subscriber, map[string]any{
				"rules":  []any{map[string]any{"name": "all", "pattern": map[string]any{"type": []string{eventType}}}},
				"target": map[string]any{"webhook": map[string]any{"url": "http://" + p.address + "/" + mode, "mode": mode}},
			})
			systems.Await(t, await.Patience, "rules are active", func() bool {
				_, answer := ask(t, http.MethodGet, subscriber+"/status", nil)
				return strings.Contains(answer, `"active":true`)
			})
		}
	}
	for _, p := range programs {
		for _, mode := range p.sends {
			p.send(t, mode)
		}
	}
	for _, to := range programs {
		for _, received := range to.receives {
			for _, from := range programs {
				for _, sent := range from.sends {
					t.Run(fmt.Sprintf("%s %s to %s %s", from.name, sent, to.name, received), func(t *testing.T) {
						for _, e := range from.events(sent) {
							var got event
							var refused []line
							to.awaits(t, e.id()+" arrives", func() (there bool) {
								got, there = to.received[received+" "+e.id()]
								refused = to.refused
								return there || len(refused) > 0
							})
							require.Empty(t, refused)
							same(t, expected(from.sdk, sent, to.sdk, received, e), got)
						}
					})
				}
			}
		}
	}
}

func put(t *testing.T, url string, definition any) {
	t.Helper()
	body, err := json.Marshal(definition)
	require.NoError(t, err)
	status, answer := ask(t, http.MethodPut, url, body)
	require.Equal(t, http.StatusCreated, status, answer)
}

func ask(t *testing.T, method, url string, body []byte) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}
