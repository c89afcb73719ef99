package nightingale

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// budget bounds the bytes of all requests in flight. It refuses rather than waits:
// the sender keeps its samples better than a queue of requests here would.
type budget struct {
	limit int64
	used  atomic.Int64
	gauge prometheus.Gauge
}

// take reserves n bytes and reports whether there was room. A negative n gives
// bytes back, which always succeeds.
func (b *budget) take(n int64) bool {
	for {
		used := b.used.Load()
		if n > 0 && used+n > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			b.gauge.Add(float64(n))
			return true
		}
	}
}

// hold is one request's part of the budget.
type hold struct {
	budget *budget
	bytes  int64
}

// set makes the hold n bytes large.
func (h *hold) set(n int64) error {
	if !h.budget.take(n - h.bytes) {
		return unavailable("in_flight_bytes", retryBusy, "too many bytes in flight, at most %d are allowed", h.budget.limit)
	}
	h.bytes = n
	return nil
}

// grow makes the hold n bytes larger. What would not fit if there were nothing else
// is refused for good.
func (h *hold) grow(n int64) error {
	if need := h.bytes + n; need > h.budget.limit {
		return tooLarge("in_flight_bytes", "the request takes %d bytes or more in memory, at most %d are allowed", need, h.budget.limit)
	}
	return h.set(h.bytes + n)
}

func (h *hold) release() {
	h.budget.take(-h.bytes)
	h.bytes = 0
}
