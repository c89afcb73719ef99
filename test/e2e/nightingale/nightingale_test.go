// Package nightingale_test sends remote write to the binary and reads the topics of a real Pulsar.
package nightingale_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/systems/remotewrite"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/history"
	"github.com/aviaryhq/aviary/test/stack"
)

// nightingaleService is a running Nightingale, all of it, inside the test.
type nightingaleService struct {
	write, admin string
	stop         func() error // ordered; twice is fine
}

func startNightingale(t *testing.T, pulsarURL, topic string, change func(*nightingale.Config)) *nightingaleService {
	t.Helper()
	cfg := nightingale.DefaultConfig()
	cfg.Pulsar.URL, cfg.Topic = pulsarURL, topic
	cfg.HTTP.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.ShutdownTimeout, cfg.RequestTimeout, cfg.Limits.ReadTimeout = await.Patience, await.Patience, await.Patience
	if change != nil {
		change(&cfg)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- app.RunProgram(ctx, app.Program[nightingale.Config]{
			Name: "nightingale", Defaults: nightingale.DefaultConfig, Build: nightingale.Build,
		}, cfg, zap.New(core))
	}()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { assert.NoError(t, stop()) })
	s := &nightingaleService{stop: stop}
	address := func(server string) (address string) {
		require.Eventually(t, func() bool {
			for _, entry := range logs.FilterMessage("listening").FilterField(zap.String("server", server)).All() {
				address = entry.ContextMap()["address"].(string)
			}
			return address != ""
		}, await.Patience, time.Millisecond)
		return address
	}
	s.admin, s.write = "http://"+address("admin"), "http://"+address("http")+"/api/v1/write"
	return s
}

func (s *nightingaleService) ready(t *testing.T) bool {
	t.Helper()
	resp, err := http.Get(s.admin + "/-/ready")
	require.NoError(t, err)
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (s *nightingaleService) awaitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.ready(t) }, await.Patience, 20*time.Millisecond)
}

// send posts a request as Prometheus does, once.
func (s *nightingaleService) send(req *prompb.WriteRequest) (status int, answer string, header http.Header, err error) {
	a, err := remotewrite.Send(context.Background(), s.write, req, nil)
	return a.Status, a.Text, a.Header, err
}

// jsonMessage is a message of the json format, with its key.
type jsonMessage struct {
	Key       string            `json:"-"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Timestamp int64             `json:"timestamp"`
	Value     any               `json:"value"`
	Histogram map[string]any    `json:"histogram"`
	Exemplar  map[string]any    `json:"exemplar"`
	Stale     bool              `json:"stale"`
}

// readMessages returns what the topic holds now, each partition in its order.
func readMessages(t *testing.T, pulsarURL, topic string) []jsonMessage {
	t.Helper()
	var messages []jsonMessage
	for _, r := range readTopic(t, pulsarURL, topic) {
		m := jsonMessage{Key: r.key}
		require.NoError(t, json.Unmarshal(r.payload, &m), "%s", r.payload)
		messages = append(messages, m)
	}
	return messages
}

// batchOf makes a request of one sample for each of a sender's series.
func batchOf(sender, series int, timestamp int64) *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for i := range series {
		req.Timeseries = append(req.Timeseries, prompb.TimeSeries{
			Labels: []prompb.Label{
				{Name: "__name__", Value: "requests_total"}, {Name: "sender", Value: fmt.Sprint(sender)}, {Name: "series", Value: fmt.Sprint(i)},
			},
			Samples: []prompb.Sample{{Timestamp: timestamp, Value: float64(timestamp)}},
		})
	}
	return req
}

func TestNightingaleWritesAllOfARequest(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	topic := pulsar.Topic(t, pulsar.Namespace(t), 3)
	s := startNightingale(t, pulsar.URL(), topic, nil)
	s.awaitReady(t)

	req := batchOf(1, 100, 1_700_000_000_123)
	labels := []prompb.Label{{Name: "job", Value: "api"}, {Name: "__name__", Value: "latency"}}
	req.Timeseries = append(req.Timeseries, prompb.TimeSeries{
		Labels:    labels,
		Samples:   []prompb.Sample{{Timestamp: 1, Value: math.Inf(1)}, {Timestamp: 2, Value: math.Float64frombits(0x7ff0000000000002)}},
		Exemplars: []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: "t1"}}, Value: 3, Timestamp: 4}},
		Histograms: []prompb.Histogram{{
			Count: &prompb.Histogram_CountInt{CountInt: 3}, Sum: 4.5, ZeroCount: &prompb.Histogram_ZeroCountInt{ZeroCountInt: 1},
			PositiveSpans: []prompb.BucketSpan{{Length: 1}}, PositiveDeltas: []int64{2}, Timestamp: 3,
		}},
	})
	status, answer, _, err := s.send(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, status, answer)

	seen := map[string]bool{}
	var latency []jsonMessage
	for _, m := range readMessages(t, pulsar.URL(), topic) {
		if m.Name == "latency" {
			latency = append(latency, m)
			continue
		}
		assert.Equal(t, "requests_total", m.Name)
		assert.Equal(t, int64(1_700_000_000_123), m.Timestamp)
		assert.InDelta(t, 1_700_000_000_123, m.Value, 0)
		assert.Len(t, m.Key, 16)
		seen[m.Labels["series"]] = true
	}
	assert.Len(t, seen, 100)
	require.Len(t, latency, 4, "one series is on one partition, in order")
	assert.Equal(t, "+Inf", latency[0].Value)
	assert.Equal(t, "NaN", latency[1].Value)
	assert.True(t, latency[1].Stale)
	assert.InDelta(t, 3, latency[2].Histogram["count"], 0)
	assert.Equal(t, map[string]any{"trace_id": "t1"}, latency[3].Exemplar["labels"])
	for _, m := range latency {
		assert.Equal(t, map[string]string{"job": "api"}, m.Labels)
		assert.Equal(t, latency[0].Key, m.Key)
	}
}

func TestNightingaleKeepsOrderPerSeries(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	topic := pulsar.Topic(t, pulsar.Namespace(t), 4)
	s := startNightingale(t, pulsar.URL(), topic, nil)
	s.awaitReady(t)

	const senders, rounds, series = 8, 40, 50
	var wg sync.WaitGroup
	for sender := range senders {
		wg.Go(func() {
			for round := range rounds {
				status, answer, _, err := s.send(batchOf(sender, series, int64(round)))
				assert.NoError(t, err)
				assert.Equal(t, http.StatusNoContent, status, answer)
			}
		})
	}
	wg.Wait()

	last := map[string]int64{}
	messages := readMessages(t, pulsar.URL(), topic)
	for _, m := range messages {
		previous, known := last[m.Key]
		if !known {
			previous = -1
		}
		require.Equal(t, previous+1, m.Timestamp, "series %v", m.Labels)
		last[m.Key] = m.Timestamp
	}
	assert.Len(t, messages, senders*rounds*series)
	assert.Len(t, last, senders*series)
}

// startBeforePulsar kills the broker, starts Nightingales, and sends to them when the broker is
// back.
func startBeforePulsar(t *testing.T, pulsar *stack.PulsarServer) {
	t.Helper()
	ns := pulsar.Namespace(t)
	topic := pulsar.Topic(t, ns, 0)
	require.NoError(t, pulsar.Kill())
	s := startNightingale(t, pulsar.URL(), topic, nil)
	assert.False(t, s.ready(t))
	// Without a topic to open before the first series, too.
	ofTenants := "persistent://" + ns + "/metrics-{tenant}"
	named, stopped := startNightingale(t, pulsar.URL(), ofTenants, nil), startNightingale(t, pulsar.URL(), ofTenants, nil)
	assert.False(t, named.ready(t))
	require.NoError(t, stopped.stop())
	status, answer, header, err := s.send(batchOf(1, 1, 1))
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.NotEmpty(t, header.Get("Retry-After"))
	assert.Contains(t, answer, "unavailable")

	require.NoError(t, pulsar.Start(t.Context()))
	s.awaitReady(t)
	named.awaitReady(t)
	for _, one := range []*nightingaleService{s, named} {
		status, answer, _, err = one.send(batchOf(1, 1, 2))
		require.NoError(t, err)
		assert.Equal(t, http.StatusNoContent, status, answer)
		require.NoError(t, one.stop())
	}
}

func TestNightingaleStopsWhilePulsarIsUnavailable(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close()) // nobody listens there, as after the end of Pulsar
	s := startNightingale(t, "pulsar://"+l.Addr().String(), "persistent://public/default/metrics", nil)
	assert.False(t, s.ready(t))
	require.NoError(t, s.stop(), "it ends within its shutdown_timeout")
}

// TestNightingaleLosesNothingAcknowledged starts before the broker once, then kills the broker under
// load, again and again. Senders behave as Prometheus does: they repeat a request until it is
// answered 2xx. Every acknowledged sample must be on the topic, and for each series
// what is on the topic must be in order: what was stored again is followed by all behind it.
//
// Nightingale publishes a repeated request once: it is still under way or was
// acknowledged. What remains twice is what the broker stored and could not say so
// before it died; a broker with deduplication keeps even that once.
func TestNightingaleLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	t.Run("broker without deduplication", func(t *testing.T) {
		t.Parallel()
		pulsar := stack.PrivatePulsar(t) // which takes long to start: it is killed for both
		startBeforePulsar(t, pulsar)
		killUnderLoad(t, pulsar, 1)
	})
	t.Run("broker with deduplication", func(t *testing.T) {
		t.Parallel()
		again := killUnderLoad(t, stack.PrivatePulsar(t, stack.Conf(map[string]string{"brokerDeduplicationEnabled": "true"})), 2)
		assert.Zero(t, again, "duplicates")
	})
}

// killUnderLoad returns the number of samples that are on the topic once too often.
func killUnderLoad(t *testing.T, pulsar *stack.PulsarServer, kills int) (again int) {
	t.Helper()
	topic := pulsar.Topic(t, pulsar.Namespace(t), 2)
	s := startNightingale(t, pulsar.URL(), topic, func(c *nightingale.Config) { c.RequestTimeout = 2 * time.Second })
	s.awaitReady(t)

	const senders, series = 4, 100
	var acknowledged [senders]atomic.Int64 // rounds
	var refused atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for sender := range senders {
		wg.Go(func() {
			for round := int64(0); ; round++ {
				for {
					select {
					case <-stop:
						return
					default:
					}
					status, answer, header, err := s.send(batchOf(sender, series, round))
					if !assert.NoError(t, err) {
						return
					}
					if status == http.StatusNoContent {
						acknowledged[sender].Add(1)
						break
					}
					refused.Add(1)
					if !assert.Equal(t, http.StatusServiceUnavailable, status, answer) || !assert.NotEmpty(t, header.Get("Retry-After")) {
						return
					}
					select { // as Prometheus, which begins with 30 ms
					case <-time.After(50 * time.Millisecond):
					case <-stop:
						return
					}
				}
			}
		})
	}
	progress := func(why string) {
		t.Helper()
		var from [senders]int64
		for i := range from {
			from[i] = acknowledged[i].Load()
		}
		require.Eventually(t, func() bool {
			for i := range from {
				if acknowledged[i].Load() < from[i]+10 {
					return false
				}
			}
			return true
		}, await.Patience, 10*time.Millisecond, why)
	}
	progress("at first")
	for range kills {
		require.NoError(t, pulsar.Kill())
		require.Eventually(t, func() bool { return !s.ready(t) }, await.Patience, 20*time.Millisecond, "it is not ready while requests go unacknowledged")
		require.NoError(t, pulsar.Start(t.Context()))
		progress("by itself after the broker is back")
	}
	close(stop)
	wg.Wait()
	assert.Positive(t, refused.Load())
	require.NoError(t, s.stop(), "what was queued is flushed")

	type point struct {
		key       string
		timestamp int64
	}
	seen := map[point]int{}
	sequences := map[string]*history.Sequence{}
	newest := map[string]int{}
	rounds := map[int]int64{}
	for _, m := range readMessages(t, pulsar.URL(), topic) {
		p := point{m.Key, m.Timestamp}
		if sequences[m.Key] == nil {
			sequences[m.Key] = new(history.Sequence)
		}
		require.NoError(t, sequences[m.Key].See(int(m.Timestamp)), "series %v", m.Labels)
		newest[m.Key] = max(newest[m.Key], int(m.Timestamp))
		if seen[p]++; seen[p] == 1 {
			var sender int
			_, err := fmt.Sscan(m.Labels["sender"], &sender)
			require.NoError(t, err)
			rounds[sender]++
		}
	}
	for key, sequence := range sequences {
		require.NoError(t, sequence.End(newest[key]+1), "what was stored again is followed by all behind it: %s", key)
	}
	for sender := range senders {
		want := acknowledged[sender].Load() * series
		assert.GreaterOrEqual(t, rounds[sender], want, "sender %d", sender)
		assert.LessOrEqual(t, rounds[sender], want+series, "one request may have been stored without having been acknowledged")
	}
	// No more than what was in flight: a request of each sender at each kill.
	assert.LessOrEqual(t, repeated(seen), kills*senders*series)
	t.Logf("%d requests acknowledged, %d refused, %d samples stored, %d of them repeated", acknowledged[0].Load()+acknowledged[1].Load()+acknowledged[2].Load()+acknowledged[3].Load(),
		refused.Load(), len(seen), repeated(seen))
	return repeated(seen)
}

func repeated[K comparable](seen map[K]int) (n int) {
	for _, times := range seen {
		n += times - 1
	}
	return n
}
