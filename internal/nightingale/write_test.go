package nightingale

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/fakebroker/publishtest"
)

// double is a receiver with a publishing stage that keeps what it is given.
type double struct {
	*httptest.Server // nil: post calls the handler, so that a test may use synctest
	handler          http.HandlerFunc
	metrics          *metrics
	topics           *prometheus.Registry // of topics by template
	receiver         *receiver

	mu       sync.Mutex
	messages []string                                                         // key and payload
	records  []messaging.Record                                               // without them
	publish  func(context.Context, []messaging.Record) (free bool, err error) // nil: all is well
}

// patient returns the configuration with time-outs that no machine is too slow for.
func patient(cfg Config) Config {
	cfg.RequestTimeout, cfg.Limits.ReadTimeout = await.Patience, await.Patience
	return cfg
}

// newDouble returns a receiver on a server.
func newDouble(t testing.TB, change func(*Config)) *double {
	t.Helper()
	d, cfg := newDoubleWithoutServer(t, change)
	d.Server = httptest.NewUnstartedServer(nil)
	d.Config = newServer(cfg, d.metrics, d.handler)
	d.Start()
	t.Cleanup(d.Close)
	return d
}

// newDoubleWithoutServer returns a receiver without sockets, and its configuration.
func newDoubleWithoutServer(t testing.TB, change func(*Config)) (*double, Config) {
	t.Helper()
	cfg := patient(DefaultConfig())
	if change != nil {
		change(&cfg)
	}
	require.Empty(t, config.Validate(cfg))
	d := &double{metrics: newMetrics(prometheus.NewRegistry(), cfg)}
	all := publish.New(zaptest.NewLogger(t), cfg.publishing(), publish.NewMetrics(prometheus.NewRegistry()), nil, opener(publishtest.NewCluster()))
	all.Divert(func(ctx context.Context, _ string, records []messaging.Record) (bool, error) {
		d.mu.Lock()
		publish := d.publish
		for _, r := range records {
			d.messages = append(d.messages, r.Key+" "+string(r.Payload))
			r.Key, r.Payload = "", nil
			d.records = append(d.records, r)
		}
		d.mu.Unlock()
		if publish != nil {
			return publish(ctx, records)
		}
		return true, nil
	})
	if !strings.Contains(cfg.Topic, "{") {
		awaitTopic(t, all)
	}
	var err error
	d.receiver, err = newReceiver(zaptest.NewLogger(t), cfg, d.metrics, all)
	require.NoError(t, err)
	d.handler = d.receiver.route
	t.Cleanup(func() {
		assert.NoError(t, d.receiver.close(context.Background()))
		assert.NoError(t, all.Close(context.Background()))
	})
	return d, cfg
}

// awaitTopic waits until the topic that the configuration names is open.
func awaitTopic(t testing.TB, all *publish.Topics) {
	t.Helper()
	require.Eventually(t, func() bool { return all.Check(t.Context()) == nil }, await.Patience, time.Millisecond)
}

// opener opens the cluster's topics.
func opener(c *publishtest.Cluster) func(context.Context, string) (publish.Publisher, error) {
	return func(ctx context.Context, topic string) (publish.Publisher, error) { return c.Open(ctx, topic) }
}

func (d *double) published() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.messages)
}

// request is that of a usual sender, with headers changed.
func (d *double) request(ctx context.Context, t testing.TB, body io.Reader, headers ...string) *http.Request {
	t.Helper()
	url := ""
	if d.Server != nil {
		url = d.URL
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/v1/write", body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "snappy")
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	return req
}

// post sends a body as a usual sender does, with headers changed.
func (d *double) post(t testing.TB, body io.Reader, headers ...string) (status int, text string, header http.Header) {
	t.Helper()
	req := d.request(t.Context(), t, body, headers...)
	if d.Server == nil {
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, req)
		return w.Code, w.Body.String(), w.Result().Header
	}
	resp, err := d.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(answer), resp.Header
}

func TestWritePublishesEverySample(t *testing.T) {
	d := newDouble(t, nil)
	status, text, header := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Everything())))
	assert.Equal(t, http.StatusNoContent, status)
	assert.Empty(t, text)
	assert.Empty(t, header.Get("X-Prometheus-Remote-Write-Samples-Written"), "version 1 answers have none")
	assert.Len(t, d.published(), 3+2+2)
	assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
	assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.samples.WithLabelValues("histogram", "written")), 0)
	assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.samples.WithLabelValues("exemplar", "written")), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.requests.WithLabelValues("204")), 0)
}

func TestWriteTakesWhatSendersSend(t *testing.T) {
	d := newDouble(t, nil)
	body := writetest.Marshal(t, writetest.Request(3, 4))
	for name, headers := range map[string][]string{
		"no content type":        {"Content-Type", ""},
		"version 1 by name":      {"Content-Type", "application/x-protobuf;proto=prometheus.WriteRequest"},
		"no encoding":            {"Content-Encoding", ""},
		"encoding in upper case": {"Content-Encoding", "Snappy"},
	} {
		t.Run(name, func(t *testing.T) {
			status, text, _ := d.post(t, writetest.Compress(body), headers...)
			assert.Equal(t, http.StatusNoContent, status, text)
		})
	}
	t.Run("chunked", func(t *testing.T) {
		status, text, _ := d.post(t, io.MultiReader(writetest.Compress(body)))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
	t.Run("nothing in it", func(t *testing.T) {
		status, text, _ := d.post(t, writetest.Compress(nil))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
	t.Run("metadata only", func(t *testing.T) {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, &prompb.WriteRequest{Metadata: writetest.Everything().Metadata})))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
	t.Run("labels in any order", func(t *testing.T) {
		before := len(d.published())
		for _, labels := range [][]string{{"b", "2", "__name__", "m", "a", "1"}, {"__name__", "m", "a", "1", "b", "2"}} {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries(labels...))))
			require.Equal(t, http.StatusNoContent, status, text)
		}
		got := d.published()[before:]
		require.Len(t, got, 2)
		assert.Equal(t, got[0], got[1])
		assert.Contains(t, got[0], `{"name":"m","labels":{"a":"1","b":"2"},"timestamp":1,"value":1}`)
	})
	t.Run("names in UTF-8", func(t *testing.T) {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries("__name__", "Größe", "stádt.name", "Köln"))))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
}

// TestWriteRefuses sends every kind of bad input, and a good request after each.
func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	valid := writetest.Marshal(t, writetest.Request(2, 3))
	bomb := append(binary.AppendUvarint(nil, 1<<30), 0, 0, 0, 0)
	require.Len(t, bomb, 9)
	many := []string{"__name__", "m"}
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("l%05d", i), "v")
	}
	histogram := writetest.Everything()
	histogram.Timeseries = histogram.Timeseries[1:]
	histogram.Timeseries[0].Histograms[0].PositiveDeltas = []int64{1}
	foreign := binary.AppendUvarint([]byte{4<<3 | 2}, 0) // symbols of a version 2 request

	labelled := func(labels ...string) io.Reader {
		return writetest.Compress(writetest.Marshal(t, writetest.OneSeries(labels...)))
	}
	for _, test := range []struct {
		name    string
		body    io.Reader
		headers []string
		status  int
		says    string
	}{
		{name: "not snappy", body: bytes.NewReader([]byte("plainly not snappy")), status: 400, says: "snappy"},
		{name: "snappy's stream format", body: bytes.NewReader([]byte("\xff\x06\x00\x00sNaPpY\x01\x05\x00\x00abcde")), status: 400, says: "snappy"},
		{name: "snappy bomb", body: bytes.NewReader(bomb), status: 413, says: "1073741824"},
		{name: "snappy cut short", body: bytes.NewReader(snappy.Encode(nil, valid)[:20]), status: 400, says: "snappy"},
		{name: "truncated protobuf", body: writetest.Compress(valid[:len(valid)-3]), status: 400, says: "cannot decode"},
		{name: "random protobuf", body: writetest.Compress([]byte{0x0a, 0x03, 0xff, 0xff, 0xff}), status: 400, says: "cannot decode"},
		{name: "wrong content type", body: writetest.Compress(valid), headers: []string{"Content-Type", "application/json"}, status: 415, says: "application/json"},
		{name: "unknown message", body: writetest.Compress(valid), headers: []string{"Content-Type", "application/x-protobuf;proto=io.prometheus.write.v3.Request"}, status: 415, says: "io.prometheus.write.v2.Request"},
		{name: "version 2 body as version 1", body: writetest.Compress(foreign), status: 400, says: "2.0"},
		{name: "wrong encoding", body: writetest.Compress(valid), headers: []string{"Content-Encoding", "gzip"}, status: 415, says: "gzip"},
		{name: "empty body", body: bytes.NewReader(nil), status: 400, says: "empty"},
		{name: "no name", body: labelled("job", "a"), status: 400, says: "__name__"},
		{name: "empty name", body: labelled("__name__", "", "job", "a"), status: 400, says: "__name__"},
		{name: "no labels", body: labelled(), status: 400, says: "__name__"},
		{name: "duplicate label", body: labelled("__name__", "m", "a", "1", "b", "2", "a", "3"), status: 400, says: "more than once"},
		{name: "empty label name", body: labelled("__name__", "m", "", "1"), status: 400, says: "empty name"},
		{name: "10,000 labels", body: labelled(many...), status: 400, says: "at most 128"},
		{name: "long label name", body: labelled("__name__", "m", strings.Repeat("n", 1025), "v"), status: 400, says: "1KiB"},
		{name: "long label value", body: labelled("__name__", "m", "n", strings.Repeat("v", 64<<10+1)), status: 400, says: "64KiB"},
		{name: "invalid UTF-8 value", body: labelled("__name__", "m", "a", "\xff\xfe"), status: 400, says: "UTF-8"},
		{name: "invalid UTF-8 name", body: labelled("__name__", "m", "a\xc3", "b"), status: 400, says: "UTF-8"},
		{name: "histogram with wrong counts", body: writetest.Compress(writetest.Marshal(t, histogram)), status: 400, says: "spans"},
		{name: "too many series", body: writetest.Compress(writetest.Marshal(t, writetest.Request(51, 2))), status: 413, says: "50 series"},
		{name: "oversized body", body: bytes.NewReader(make([]byte, 64<<10+1)), status: 413, says: "65536"},
		{name: "oversized chunked body", body: io.MultiReader(bytes.NewReader(make([]byte, 64<<10+1))), status: 413, says: "65536"},
		{name: "oversized decoded body", body: writetest.Compress(make([]byte, 1<<20+1)), status: 413, says: "1048576"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, func(c *Config) {
				c.Limits.Series = 50
				c.Limits.CompressedBytes = 64 * config.KiB
				c.Limits.DecodedBytes = config.MiB
			})
			status, text, header := d.post(t, test.body, test.headers...)
			assert.Equal(t, test.status, status, text)
			assert.Contains(t, text, test.says)
			assert.LessOrEqual(t, len(text), refusal.MaxAnswer+10)
			assert.Empty(t, header.Get("Retry-After"), "a retry would fail again")
			assert.Empty(t, d.published())

			status, text, _ = d.post(t, writetest.Compress(valid))
			assert.Equal(t, http.StatusNoContent, status, text)
			assert.Zero(t, d.receiver.budget.Used())
		})
	}
}

func TestWriteRefusesMethodsAndPaths(t *testing.T) {
	d := newDouble(t, nil)
	for _, test := range []struct {
		method, path string
		status       int
		says         string
	}{
		{http.MethodGet, "/api/v1/write", 405, "/api/v1/write takes POST, not GET"},
		{http.MethodPut, "/api/v1/write", 405, "takes POST, not PUT"},
		{http.MethodDelete, "/api/v1/write", 405, "takes POST"},
		{http.MethodPost, "/api/v1/read", 404, "there is nothing at /api/v1/read: remote write goes by POST to /api/v1/write"},
		{http.MethodGet, "/", 404, "/api/v1/write"},
		{http.MethodGet, "/metrics", 404, "/metrics is at the address of admin.listen, not here"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), test.method, d.URL+test.path, nil)
		require.NoError(t, err)
		resp, err := d.Client().Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, test.status, resp.StatusCode, "%s %s", test.method, test.path)
		assert.Contains(t, string(text), test.says)
	}
	assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.refused.WithLabelValues("unknown_path")), 0)
}

func TestWriteKeepsTheValidRest(t *testing.T) {
	d := newDouble(t, nil)
	req := writetest.Request(20, 3)
	for i := range 10 {
		req.Timeseries[2*i].Labels[1].Name = "" // even ones
	}
	status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, text, "10 of 20 series are invalid")
	assert.Contains(t, text, "and 5 more")
	assert.Equal(t, 7, strings.Count(text, "\n"), text)
	assert.Len(t, d.published(), 10)
	assert.InDelta(t, 10, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("empty_label_name")), 0)
	assert.InDelta(t, 10, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
	assert.InDelta(t, 10, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "rejected")), 0)
}

// TestWriteAsksToRetry: an error that passes outweighs invalid series, or the
// sender would give up on the valid ones.
func TestWriteAsksToRetry(t *testing.T) {
	d := newDouble(t, nil)
	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		return false, refusal.Unavailable("timeout", refusal.RetryUnavailable, "Pulsar did not acknowledge in time")
	}
	req := writetest.Request(2, 3)
	req.Timeseries[0].Labels[1].Name = ""
	status, text, header := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, "5", header.Get("Retry-After"))
	assert.Contains(t, text, "in time")
	assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "unwritten")), 0)
}

func TestWriteBoundsBytesInFlight(t *testing.T) {
	d := newDouble(t, func(c *Config) {
		c.Limits.CompressedBytes, c.Limits.DecodedBytes, c.Limits.InFlightBytes = 256*config.KiB, config.MiB, 6*config.MiB
	})
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	d.publish = func(context.Context, []messaging.Record) (bool, error) {
		entered <- struct{}{}
		<-leave
		return true, nil
	}
	large := writetest.Marshal(t, writetest.Request(7500, 3))
	require.Greater(t, len(large), 600<<10)
	first := make(chan int, 1)
	go func() {
		status := 0
		resp, err := http.Post(d.URL+"/api/v1/write", "application/x-protobuf", writetest.Compress(large))
		if assert.NoError(t, err) {
			resp.Body.Close()
			status = resp.StatusCode
		}
		first <- status
	}()
	select {
	case <-entered:
	case status := <-first:
		t.Fatalf("answered %d before it was published", status)
	}
	status, text, header := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(7501, 3))))
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, text, "in flight")
	assert.Equal(t, "1", header.Get("Retry-After"))

	d.mu.Lock()
	d.publish = nil
	d.mu.Unlock()
	status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(2, 3))))
	assert.Equal(t, http.StatusNoContent, status, "a small one has room: %s", text)
	close(leave)
	assert.Equal(t, http.StatusNoContent, <-first)
	require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, await.Patience, time.Millisecond)
}

// dial sends raw bytes.
func (d *double) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// exchange sends raw bytes and returns what the server answers before it closes the connection. It
// makes another connection if the machine was so slow that the server closed one without an answer.
func exchange(t *testing.T, address, text string) string {
	t.Helper()
	for deadline := time.Now().Add(await.Patience); ; {
		require.True(t, time.Now().Before(deadline), "no answer")
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(deadline))
		_, _ = io.WriteString(conn, text)
		answer, err := io.ReadAll(conn)
		require.NoError(t, conn.Close())
		if len(answer) > 0 {
			require.NoError(t, err, "the server closes it")
			return string(answer)
		}
	}
}

const head = "POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\n"

func TestWriteGivesUpOnABodyThatNeverEnds(t *testing.T) {
	t.Parallel()
	for name, framing := range map[string]string{"sized": "Content-Length: 1000\r\n\r\nabc", "chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, func(c *Config) { c.Limits.ReadTimeout = 100 * time.Millisecond })
			text := exchange(t, d.Listener.Addr().String(), head+framing)
			resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
			require.NoError(t, err)
			defer resp.Body.Close()
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "the network may be slow: no loss for that")
			assert.Equal(t, "1", resp.Header.Get("Retry-After"))
		})
	}
}

func TestWriteDoesNotMindSlowAcknowledgements(t *testing.T) {
	t.Parallel()
	const readTimeout = 50 * time.Millisecond
	d := newDouble(t, func(c *Config) { c.Limits.ReadTimeout = readTimeout })
	var entered atomic.Bool
	d.publish = func(ctx context.Context, _ []messaging.Record) (bool, error) {
		entered.Store(true)
		select {
		case <-time.After(3 * readTimeout):
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	require.Eventually(t, func() bool {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(1, 2))))
		if !entered.Load() { // on a busy machine the body may come late: the sender repeats it
			assert.Equal(t, http.StatusServiceUnavailable, status, text)
			return false
		}
		assert.Equal(t, http.StatusNoContent, status, "the deadline of the body must not outlive it: %s", text)
		return true
	}, await.Patience, time.Millisecond)
}

func TestWriteNoticesSendersThatHangUp(t *testing.T) {
	t.Run("in the body", func(t *testing.T) {
		d := newDouble(t, nil)
		conn := d.dial(t, head+"Content-Length: 1000\r\n\r\nabc")
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(d.metrics.requests.WithLabelValues("499")) == 1
		}, await.Patience, time.Millisecond)
		assert.Zero(t, d.receiver.budget.Used())
		assert.Empty(t, d.published())
	})
	t.Run("while waiting", func(t *testing.T) {
		d := newDouble(t, nil)
		entered, acknowledge := make(chan struct{}), make(chan struct{})
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			close(entered)
			<-acknowledge
			return true, nil
		}
		body := snappy.Encode(nil, writetest.Marshal(t, writetest.Request(1, 2)))
		conn := d.dial(t, head+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
		<-entered
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(d.metrics.requests.WithLabelValues("499")) == 1
		}, await.Patience, time.Millisecond)
		close(acknowledge) // what has begun to be published goes on
		require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, await.Patience, time.Millisecond)
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")) == 1
		}, await.Patience, time.Millisecond)
	})
}

func TestWriteAnswersWithinItsTimeout(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
	d.publish = func(ctx context.Context, _ []messaging.Record) (bool, error) {
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return false, ctx.Err()
		}
		return false, refusal.Unavailable("timeout", refusal.RetryUnavailable, "late")
	}
	status, _, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(1, 2))))
	assert.Equal(t, http.StatusServiceUnavailable, status)
}

// TestWriteDoesNotMixRequests drives many requests through the reused memory and
// looks at every message long after, as a publisher may that has not let go of it.
func TestWriteDoesNotMixRequests(t *testing.T) {
	d := newDouble(t, nil)
	var mu sync.Mutex
	var kept []messaging.Record
	d.publish = func(_ context.Context, records []messaging.Record) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		free := len(kept)%2 == 0
		for _, r := range records {
			if free {
				r.Key, r.Payload = strings.Clone(r.Key), bytes.Clone(r.Payload)
			}
			kept = append(kept, r)
		}
		return free, nil
	}
	const senders, each = 8, 30
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for n := range each {
				req := writetest.OneSeries("__name__", fmt.Sprintf("metric_%d", s), "round", fmt.Sprint(n), "filler", strings.Repeat(string(rune('a'+s)), 1+n*7))
				req.Timeseries[0].Samples[0].Value = float64(1000*s + n)
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
				assert.Equal(t, http.StatusNoContent, status, text)
			}
		})
	}
	wg.Wait()
	require.Len(t, kept, senders*each)
	seen := map[float64]bool{}
	for _, r := range kept {
		var m struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
			Value  float64           `json:"value"`
		}
		require.NoError(t, json.Unmarshal(r.Payload, &m))
		s, n := int(m.Value)/1000, int(m.Value)%1000
		assert.Equal(t, fmt.Sprintf("metric_%d", s), m.Name)
		assert.Equal(t, fmt.Sprint(n), m.Labels["round"])
		assert.Equal(t, strings.Repeat(string(rune('a'+s)), 1+n*7), m.Labels["filler"])
		sorted := []batch.Label{{Name: batch.NameLabel, Value: m.Name}, {Name: "filler", Value: m.Labels["filler"]}, {Name: "round", Value: m.Labels["round"]}}
		hash, _ := batch.KeyOf(sorted, nil)
		assert.Equal(t, string(batch.AppendKey(nil, hash)), r.Key)
		seen[m.Value] = true
	}
	assert.Len(t, seen, senders*each)
}

func TestStaleMarkerIsToldFromOtherNaNs(t *testing.T) {
	assert.True(t, batch.IsStale(math.Float64frombits(0x7ff0000000000002)))
	assert.False(t, batch.IsStale(math.NaN()))
}
