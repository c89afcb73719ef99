// Package lifecycle_test starts and stops the services as an operator does.
package lifecycle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
	"github.com/aviaryhq/aviary/test/systems/remotewrite"

	"github.com/prometheus/prometheus/prompb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// theService is the variable that says which service a process of this binary is.
const theService = "AVIARY_TEST_SERVICE"

func TestMain(m *testing.M) {
	systems.Main(m, func() int {
		switch os.Getenv(theService) {
		case "nightingale":
			return app.Main(app.Program[nightingale.Config]{Name: "nightingale", Defaults: nightingale.DefaultConfig, Flags: nightingale.Flags, Build: nightingale.Build, Setup: nightingale.Setup})
		case "pigeonhole":
			return app.Main(app.Program[pigeonhole.Config]{Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Build: pigeonhole.Build, Setup: pigeonhole.Setup})
		case "sonic":
			return app.Main(app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Flags: sonic.Flags, Build: sonic.Build, Setup: sonic.Setup})
		default:
			return app.Main(app.Program[eventbridge.Config]{Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build, Setup: eventbridge.Setup})
		}
	})
}

// environment has the keys as variables.
func environment(service string, keys map[string]string) []string {
	env := []string{theService + "=" + service}
	for key, value := range keys {
		env = append(env, strings.ToUpper(service+"_"+strings.ReplaceAll(key, ".", "_"))+"="+value)
	}
	return env
}

// run starts a service by its environment, and waits until it is ready.
func run(t *testing.T, service string, keys map[string]string) *systems.Process {
	t.Helper()
	keys["admin.listen"] = "127.0.0.1:0"
	p := systems.Run(t, nil, environment(service, keys))
	require.Eventually(t, func() bool {
		status, _ := p.Ask(http.MethodGet, "/-/ready")
		return status == http.StatusOK
	}, await.Patience, 20*time.Millisecond, "not ready")
	return p
}

// assertNothingToWorryAbout: a start and a stop in order have no line of a level that an operator
// is woken by, nor one with an error.
func assertNothingToWorryAbout(t *testing.T, log string) {
	t.Helper()
	assert.Contains(t, log, `"msg":"stopped"`)
	for line := range strings.Lines(log) {
		var fields map[string]any
		if !assert.NoError(t, json.Unmarshal([]byte(line), &fields), line) {
			continue
		}
		assert.Contains(t, []any{"info", "debug"}, fields["level"], line)
		assert.NotContains(t, fields, "error", line)
	}
}

func post(t *testing.T, method, url, kind string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text)
}

func TestNightingaleStartsAndStopsInSilence(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	p := run(t, "nightingale", map[string]string{
		"pulsar.url": server.URL(), "topic": server.Topic(t, server.Namespace(t), 3), "http.listen": "127.0.0.1:0",
	})
	series := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "up"}}, Samples: []prompb.Sample{{Value: 1, Timestamp: time.Now().UnixMilli()}}}
	answer, err := remotewrite.Send(t.Context(), "http://"+p.Address("http")+"/api/v1/write", &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series}}, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, answer.Status, answer.Text)
	p.Stop()
	assertNothingToWorryAbout(t, p.Log())
}

func TestEventbridgeStartsAndStopsInSilence(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	p := run(t, "eventbridge", map[string]string{
		"pulsar.url": server.URL(), "pulsar.admin_url": server.AdminURL(), "topics.namespace": server.Namespace(t), "http.listen": "127.0.0.1:0",
	})
	api := "http://" + p.Address("http")
	require.Equal(t, http.StatusCreated, post(t, http.MethodPut, api+"/v1/buses/orders", "application/json", []byte(`{"partitions": 2}`)))
	for _, name := range []string{"first", "second"} {
		subscriber := `{"rules": [{"name": "all", "pattern": {"type": [{"prefix": ""}]}}], "target": {"log": {}}}`
		require.Equal(t, http.StatusCreated, post(t, http.MethodPut, api+"/v1/buses/orders/subscribers/"+name, "application/json", []byte(subscriber)))
	}
	for _, name := range []string{"first", "second"} {
		require.Eventually(t, func() bool {
			return strings.Contains(get(t, api+"/v1/buses/orders/subscribers/"+name+"/status"), `"active":true`)
		}, await.Patience, 20*time.Millisecond, name)
	}
	event := []byte(`{"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.placed", "subject": "a"}`)
	require.Eventually(t, func() bool {
		return post(t, http.MethodPost, api+"/v1/buses/orders/events", "application/cloudevents+json", event) == http.StatusAccepted
	}, await.Patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Count(p.Log(), `"msg":"event"`) >= 2 }, await.Patience, 20*time.Millisecond, "delivered")
	p.Stop()
	assertNothingToWorryAbout(t, p.Log())
	assert.Contains(t, p.Log(), `"msg":"released a partition"`)
}

func TestSonicStartsAndStopsInSilence(t *testing.T) {
	t.Parallel()
	server, redisServer := stack.Pulsar(t), stack.PrivateRedis(t)
	ns := server.Namespace(t)
	p := run(t, "sonic", map[string]string{
		"pulsar.url": server.URL(), "redis.url": redisServer.URL(), "listen": "127.0.0.1:0", "topic": "persistent://" + ns + "/sonic", "zones": "default,other",
	})
	client := redis.NewClient(&redis.Options{Addr: p.Address("redis")})
	require.NoError(t, client.Set(t.Context(), "a", "b", 0).Err())
	require.NoError(t, client.Close())
	p.Stop()
	assertNothingToWorryAbout(t, p.Log())
}

func TestPigeonholeStartsAndStopsInSilence(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	ns := server.Namespace(t)
	from, to := server.Topic(t, ns, 3), server.Topic(t, ns, 3)
	p := run(t, "pigeonhole", map[string]string{"routes": fmt.Sprintf(
		"[{name: copy, source: {pulsar: {url: %[1]q, topics: [%[2]q], subscription: s}}, sink: {pulsar: {url: %[1]q}}, to: %[3]q}]", server.URL(), from, to)})
	var records []*messaging.Record
	for i := range 30 {
		records = append(records, &messaging.Record{Key: fmt.Sprint(i), Payload: []byte("x")})
	}
	require.NoError(t, pulsar.Publish(t.Context(), server.URL(), from, records...))
	require.Eventually(t, func() bool {
		_, metrics := p.Ask(http.MethodGet, "/metrics")
		return bytes.Contains(metrics, []byte(`pigeonhole_messages_total{result="stored",route="copy"} 30`))
	}, await.Patience, 20*time.Millisecond)
	p.Stop()
	assertNothingToWorryAbout(t, p.Log())
}
