package nightingale

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// budget bounds the bytes of all requests in flight, and of each tenant's. It refuses
// rather than waits: the sender keeps its samples better than a queue of requests
// here would.
type budget struct {
	limit int64
	used  atomic.Int64 // changed under mu
	gauge prometheus.Gauge

	mu      sync.Mutex
	share   int64            // of one tenant that has several requests in flight
	tenants map[string]int64 // bytes held, never 0
}

func newBudget(cfg Config, gauge prometheus.Gauge) *budget {
	b := &budget{limit: int64(cfg.Limits.InFlightBytes), gauge: gauge, tenants: make(map[string]int64)}
	b.setShare(cfg.Tenants.InFlightShare)
	return b
}

// setShare changes the share of a tenant, from 0 to 1. What is held stays.
func (b *budget) setShare(share float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share = int64(float64(b.limit) * share)
}

// move changes what is held by n bytes, whatever the bounds. b.mu is held.
func (b *budget) move(tenant string, n int64) {
	b.used.Add(n)
	b.gauge.Add(float64(n))
	if b.tenants[tenant] += n; b.tenants[tenant] == 0 {
		delete(b.tenants, tenant)
	}
}

// hold is one request's part of the budget.
type hold struct {
	budget *budget
	tenant string
	bytes  int64
}

// set makes the hold n bytes large. What would not fit if there were nothing else is
// refused for good. The tenant's share binds the second of its requests: the first
// may be as large as any.
func (h *hold) set(n int64) error {
	b, more := h.budget, n-h.bytes
	if n > b.limit {
		return tooLarge("in_flight_bytes", "the request takes %d bytes or more in memory, at most %d are allowed", n, b.limit)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.tenants[h.tenant]; more > 0 {
		if b.used.Load()+more > b.limit {
			return unavailable("in_flight_bytes", retryBusy, "too many bytes in flight, at most %d are allowed", b.limit)
		}
		if held+more > b.share && held > h.bytes {
			return unavailable("in_flight_share", retryBusy, "the tenant has too many bytes in flight, at most %d are allowed", b.share)
		}
	}
	b.move(h.tenant, more)
	h.bytes = n
	return nil
}

// grow makes the hold n bytes larger.
func (h *hold) grow(n int64) error { return h.set(h.bytes + n) }

func (h *hold) release() {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.move(h.tenant, -h.bytes)
	h.bytes = 0
}

// shrink makes the hold n bytes smaller.
func (h *hold) shrink(n int64) {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	n = min(n, h.bytes)
	h.budget.move(h.tenant, -n)
	h.bytes -= n
}

// handOver moves the hold to what outlives the request, n bytes, and leaves nothing
// for release. There is always room: what is larger than the body it was made of
// cannot wait for better times.
func (h *hold) handOver(n int64) *hold {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.move(h.tenant, n-h.bytes)
	h.bytes = 0
	return &hold{budget: h.budget, tenant: h.tenant, bytes: n}
}
