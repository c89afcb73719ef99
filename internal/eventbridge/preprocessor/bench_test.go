package preprocessor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/registrytest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/stack"
)

// nowhere stores nothing and acknowledges at once.
type nowhere struct{}

func (nowhere) PublishAsync(_ context.Context, _ *messaging.Record, done func(messaging.MessageID, error)) {
	done(messaging.MessageID{}, nil)
}
func (nowhere) Flush(context.Context) error { return nil }
func (nowhere) Close(context.Context) error { return nil }

// benchEvent has about 500 bytes.
func benchEvent(i int) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"order-%08d","source":"/shop/orders","type":"shop.order.placed","time":"2026-11-22T17:00:00.123Z","datacontenttype":"application/json","partitionkey":"customer-%d",`+
		`"data":{"order":%d,"customer":{"id":%d,"name":"Anna Müller","email":"anna@example.org"},"items":[{"sku":"A-1","count":2,"price":19.99},{"sku":"B-7","count":1,"price":5}],"total":44.98,"currency":"EUR","paid":true,"note":"leave it at the door, please, and ring twice"}}`, i, i%1000, i, i%1000)
}

// sink is a response that nobody reads.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

// cpu is the time that the process has taken of processors, in nanoseconds. On a machine with others it says more than the clock.
func cpu(b *testing.B) int64 {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// BenchmarkHandler is the handler alone: without the server's side of HTTP, and without Pulsar.
func BenchmarkHandler(b *testing.B) {
	batch := make([]string, 100)
	for i := range batch {
		batch[i] = benchEvent(i)
	}
	for _, test := range []struct {
		name, contentType, body string
		events                  int
		tenants                 bool
	}{
		{"single", event.MediaType, benchEvent(7), 1, false},
		{"single, tenant with quota", event.MediaType, benchEvent(7), 1, true},
		{"batch of 100", event.BatchMediaType, "[" + strings.Join(batch, ",") + "]", 100, false},
	} {
		b.Run(test.name, func(b *testing.B) {
			cfg := DefaultConfig()
			if test.tenants {
				cfg.Tenants = []TenantConfig{{Name: "shop", APIKeys: []secret.String{"key"}, Quota: Quota{EventsPerSecond: 1e9, BytesPerSecond: 1e9}}}
			}
			known := registrytest.NewStore(registrytest.Snapshot(b, 1, buses(), nil))
			open := func(context.Context, string) (Publisher, error) { return nowhere{}, nil }
			p, err := New(cfg, "ingest.", known, registry.Topics{Namespace: namespace}, open, zap.NewNop(), prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			router := chi.NewRouter()
			p.Routes(router)
			body := []byte(test.body)
			r := httptest.NewRequest(http.MethodPost, "/v1/buses/orders/events", nil)
			r.Header.Set("Content-Type", test.contentType)
			r.Header.Set("X-Api-Key", "key")
			r.ContentLength = int64(len(body))
			reader := bytes.NewReader(body)
			w := &sink{header: http.Header{}}
			b.ReportAllocs()
			began := cpu(b)
			for b.Loop() {
				reader.Reset(body)
				r.Body = io.NopCloser(reader)
				router.ServeHTTP(w, r)
				if w.status != http.StatusAccepted {
					b.Fatal(w.status)
				}
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N*test.events), "cpu-ns/event")
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkIngest is all of it: clients over keep-alive connections, the server, and a real Pulsar with four partitions. The processors' time is that of
// clients and server.
func BenchmarkIngest(b *testing.B) {
	srv := stack.Pulsar(b)
	for _, test := range []struct {
		name                string
		connections, events int
	}{{"single, 256 connections", 256, 1}, {"batches of 100, 16 connections", 16, 100}} {
		b.Run(test.name, func(b *testing.B) {
			ns := srv.Namespace(b)
			topic := registry.Topics{Namespace: ns}.Events("orders")
			path := "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/partitions"
			if err := srv.Admin(b.Context(), http.MethodPut, path, 4, nil); err != nil {
				b.Fatal(err)
			}
			p := newOnPulsar(b, zap.NewNop(), messaging.Config{URL: srv.URL()}, ns, DefaultConfig())
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: test.connections}}
			defer client.CloseIdleConnections()
			var next, failed atomic.Int64
			send := func() {
				i := int(next.Add(1))
				contentType, body := event.MediaType, benchEvent(i)
				if test.events > 1 {
					all := make([]string, test.events)
					for n := range all {
						all[n] = benchEvent(i*test.events + n)
					}
					contentType, body = event.BatchMediaType, "["+strings.Join(all, ",")+"]"
				}
				resp, err := client.Post(p.url+"/v1/buses/orders/events", contentType, strings.NewReader(body))
				if err != nil {
					failed.Add(1)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusAccepted {
					failed.Add(1)
				}
			}
			send() // the topic is open
			b.ResetTimer()
			began := cpu(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			var senders sync.WaitGroup
			for range test.connections {
				senders.Go(func() {
					for left.Add(-1) >= 0 {
						send()
					}
				})
			}
			senders.Wait()
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N*test.events), "cpu-ns/event")
			b.ReportMetric(float64(b.N*test.events)/b.Elapsed().Seconds(), "events/s")
			if failed.Load() > 0 {
				b.Fatalf("%d of %d requests failed", failed.Load(), b.N)
			}
		})
	}
}
