package ingest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
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

// cpu is the time that the process has taken of processors, in nanoseconds. On a machine with
// others it says more than the clock.
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
				cfg.Tenants = []TenantConfig{{Name: "shop", Buses: []string{"*"}, APIKeys: []secret.String{"key"}, Quota: Quota{EventsPerSecond: 1e9, BytesPerSecond: 1e9}}}
			}
			known := storetest.NewStore(storetest.Snapshot(b, 1, buses(), nil))
			open := func(context.Context, string) (Publisher, error) { return nowhere{}, nil }
			p, err := New(cfg, known, model.Topics{Namespace: namespace}, nil, open, zap.NewNop(), prometheus.NewRegistry())
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

// BenchmarkIngest is all of it: senders over keep-alive connections, the server, and a real Pulsar
// with four partitions. The processors' time is that of senders and server; the senders are as
// cheap as can be, and make their requests before.
func BenchmarkIngest(b *testing.B) {
	srv := stack.Pulsar(b)
	for _, test := range []struct {
		name                string
		connections, events int
	}{{"single, 256 connections", 256, 1}, {"batches of 100, 16 connections", 16, 100}} {
		b.Run(test.name, func(b *testing.B) {
			ns := srv.Namespace(b)
			topic := model.Topics{Namespace: ns}.Events("orders")
			path := "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/partitions"
			if err := srv.Admin(b.Context(), http.MethodPut, path, 4, nil); err != nil {
				b.Fatal(err)
			}
			p := newOnPulsar(b, zap.NewNop(), messaging.Config{URL: srv.URL()}, ns, DefaultConfig())
			requests := make([][]byte, 1000)
			for i := range requests {
				requests[i] = benchRequest(i, test.events)
			}
			dial := func() *rawSender {
				conn, err := new(net.Dialer).DialContext(b.Context(), "tcp", p.addr)
				if err != nil {
					b.Fatal(err)
				}
				return &rawSender{conn: conn, answers: bufio.NewReader(conn)}
			}
			opening := dial()
			if err := opening.send(requests[0]); err != nil {
				b.Fatal(err)
			}
			_ = opening.conn.Close()
			senders := make([]*rawSender, test.connections)
			for i := range senders {
				senders[i] = dial()
			}
			b.ResetTimer()
			began := cpu(b)
			var done, failed atomic.Int64
			var running sync.WaitGroup
			for _, s := range senders {
				running.Go(func() {
					for i := done.Add(1); i <= int64(b.N); i = done.Add(1) {
						if err := s.send(requests[i%int64(len(requests))]); err != nil {
							failed.Add(1)
							return
						}
					}
				})
			}
			running.Wait()
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N*test.events), "cpu-ns/event")
			b.ReportMetric(float64(b.N*test.events)/b.Elapsed().Seconds(), "events/s")
			if failed.Load() > 0 {
				b.Fatalf("%d of %d senders failed", failed.Load(), test.connections)
			}
			for _, s := range senders {
				_ = s.conn.Close()
			}
		})
	}
}

// benchRequest is a whole request with so many events.
func benchRequest(i, events int) []byte {
	contentType, body := event.MediaType, benchEvent(i)
	if events > 1 {
		all := make([]string, events)
		for n := range all {
			all[n] = benchEvent(i*events + n)
		}
		contentType, body = event.BatchMediaType, "["+strings.Join(all, ",")+"]"
	}
	return fmt.Appendf(nil, "POST /v1/buses/orders/events HTTP/1.1\r\nHost: x\r\nUser-Agent: bench\r\nAccept: */*\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		contentType, len(body), body)
}

// rawSender sends one request after the other.
type rawSender struct {
	conn    net.Conn
	answers *bufio.Reader
}

// send returns when the answer has come, which must be 202 with a Content-Length.
func (s *rawSender) send(request []byte) error {
	if _, err := s.conn.Write(request); err != nil {
		return err
	}
	size := -1
	for first := true; ; first = false {
		line, err := s.answers.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 202 ")) {
			return fmt.Errorf("answered %q", line)
		}
		if text, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if size, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	_, err := s.answers.Discard(size)
	return err
}
