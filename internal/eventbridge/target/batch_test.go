package target

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// TestOneEventDoesNotFailItsBatch: the halves of a batch are posted if it is refused, or if it
// fails again and is not unavailable.
func TestOneEventDoesNotFailItsBatch(t *testing.T) {
	for _, test := range []struct {
		name    string
		status  int // of a request with a poison event
		poison  []int
		retried int // an event that has failed before; -1: none
		most    int64
		want    Verdict // of a poison event
		others  Verdict
	}{
		{"refused", 422, []int{50}, -1, 15, Refused, Delivered},
		{"hops", 508, []int{99}, -1, 15, Refused, Delivered},
		{"two refused", 400, []int{0, 50}, -1, 29, Refused, Delivered},
		{"it fails", 500, []int{50}, -1, 1, Retry, Retry},
		{"it fails again", 500, []int{50}, 50, 15, Retry, Delivered},
		{"another has failed before", 500, []int{50}, 7, 15, Retry, Retry},
		{"it is unavailable again", 503, []int{50}, 50, 1, Retry, Retry},
		{"it is gone", 410, []int{50}, 50, 1, Gone, Gone},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t, nil)
			r := newReceiver(t, nil)
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				for _, i := range test.poison {
					if strings.Contains(r.last().body, fmt.Sprintf(`"id":"e%d"`, i)) {
						w.WriteHeader(test.status)
						return
					}
				}
			}
			batch := make([]Delivery, 100)
			for i := range batch {
				batch[i] = h.event(fmt.Sprintf("e%d", i))
				batch[i].Retried = i == test.retried
			}
			results := h.webhook(r.URL, func(w *model.Webhook) { w.Mode = "batch" }).Deliver(t.Context(), batch)
			require.Len(t, results, len(batch))
			assert.LessOrEqual(t, r.count.Load(), test.most)
			failed := 0
			for _, i := range test.poison {
				assert.Equal(t, test.want, results[i].Verdict)
				assert.Equal(t, test.status, results[i].Status)
			}
			for _, result := range results {
				if result.Verdict != Delivered {
					failed++
				}
			}
			if test.others == Delivered {
				assert.Len(t, test.poison, failed)
			}
		})
	}
}

// TestPartsHaveTheirOwnTimeout: a part of a batch does not fail because other parts took long.
func TestPartsHaveTheirOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 2 * time.Second
		var requests atomic.Int64
		w := newPiped(func(there net.Conn) {
			requests.Add(1)
			time.Sleep(timeout * 2 / 5)
			say(there, "HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n")
		})
		w.mode, w.timeout = model.ModeBatch, timeout
		for _, result := range w.Deliver(t.Context(), []Delivery{{}, {}}) {
			require.Equal(t, Refused, result.Verdict, "%v", result.Err)
		}
		assert.Equal(t, int64(3), requests.Load())
		w.transport.CloseIdleConnections()
	})
}

// TestNothingIsPostedToADestinationThatTakesNothing: once it is unavailable or gone, or the caller
// stops, the parts of a batch that follow have that result.
func TestNothingIsPostedToADestinationThatTakesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		answer string // to an event alone; empty: none
		want   Result
	}{
		"unavailable": {"HTTP/1.1 503 No\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n",
			Result{Reason: ReasonStatus, Status: 503, Unavailable: true, RetryAfter: 9 * time.Second}},
		"gone":      {"HTTP/1.1 410 No\r\nContent-Length: 0\r\n\r\n", Result{Verdict: Gone, Reason: ReasonStatus, Status: 410}},
		"no answer": {"", Result{Reason: ReasonTimeout, Unavailable: true}},
		"stopped":   {"stop", Result{Reason: ReasonStopped}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var requests atomic.Int64
			url := rawServer(t, func(c net.Conn) {
				for r, body := readWhole(c); r != nil; r, body = readWhole(c) {
					requests.Add(1)
					switch {
					case strings.Count(body, `"id"`) > 1:
						say(c, "HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n")
					case test.answer == "stop":
						stop()
					default:
						say(c, test.answer)
					}
				}
			})
			timeout := await.Patience
			if name == "no answer" {
				timeout = 300 * time.Millisecond
			}
			h := newHarness(t, nil)
			target := h.target(&model.Subscriber{
				Target: model.Target{Webhook: &model.Webhook{URL: url, Mode: "batch"}}, Delivery: model.Delivery{Timeout: model.Duration(timeout)},
			})
			batch := make([]Delivery, 16)
			for i := range batch {
				batch[i] = h.event(fmt.Sprint(i))
			}
			results := target.Deliver(ctx, batch)
			require.Len(t, results, len(batch))
			for _, result := range results {
				require.Error(t, result.Err)
				result.Err, result.Latency = nil, 0
				require.Equal(t, test.want, result)
			}
			assert.Equal(t, int64(5), requests.Load(), "16, 8, 4, 2 and 1 events")
		})
	}
}
