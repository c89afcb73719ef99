package target

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// responder is a receiver that costs next to nothing: it looks for the length of the body and
// answers 204.
func responder(b *testing.B) (url string) {
	b.Helper()
	return rawServer(b, func(c net.Conn) {
		buffer, used := make([]byte, 64<<10), 0
		answer := []byte("HTTP/1.1 204 No Content\r\n\r\n")
		for {
			n, err := c.Read(buffer[used:])
			if err != nil {
				return
			}
			used += n
			for {
				head := bytes.Index(buffer[:used], []byte("\r\n\r\n"))
				if head < 0 {
					break
				}
				at := bytes.Index(buffer[:head], []byte("Content-Length: "))
				line, _, _ := bytes.Cut(buffer[at+16:head+2], []byte("\r\n"))
				length, _ := strconv.Atoi(string(line))
				whole := head + 4 + length
				if used < whole {
					break
				}
				used = copy(buffer, buffer[whole:used])
				if _, err := c.Write(answer); err != nil {
					return
				}
			}
		}
	})
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkWebhook delivers events of about 500 bytes. Its figure cpu_us/op is the CPU time of
// client and receiver for one delivery. "net/http" is a plain client that posts the same body: what
// remains is Eventbridge's own.
func BenchmarkWebhook(b *testing.B) {
	h := newHarness(b, nil)
	text := `{"specversion":"1.0","id":"7","source":"/shop","type":"order.placed","data":{"x":"` + strings.Repeat("a", 420) + `"}}`
	d := h.stored(text)
	run := func(name string, deliver func() bool) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var failed atomic.Int64
			before := cpu()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if !deliver() {
						failed.Add(1)
					}
				}
			})
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu_us/op")
			require.Zero(b, failed.Load())
		})
	}
	url := responder(b)
	client := &http.Client{Transport: h.newTransport(nil, 64)}
	run("net/http", func() bool {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(text))
		if err != nil {
			return false
		}
		answer, err := client.Do(r)
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusNoContent
	})
	client.CloseIdleConnections()
	for _, mode := range []string{"structured", "binary", "structured signed"} {
		target := h.webhook(url, func(w *model.Webhook) {
			var signed string
			if w.Mode, signed, _ = strings.Cut(mode, " "); signed != "" {
				w.SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
			}
		})
		run(mode, func() bool { return target.Deliver(context.Background(), []Delivery{d})[0].Verdict == Delivered })
	}
	batch := make([]Delivery, 100)
	for i := range batch {
		batch[i] = d
	}
	target := h.webhook(url, func(w *model.Webhook) { w.Mode = "batch" })
	run(fmt.Sprintf("batch of %d", len(batch)), func() bool { return target.Deliver(context.Background(), batch)[0].Verdict == Delivered })
}
