package door

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Budget bounds the bytes of all requests in flight, and of each tenant's. It refuses
// rather than waits: the sender keeps what it sends better than a queue of requests
// here would. It is safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64 // changed under mu
	gauge prometheus.Gauge

	mu      sync.Mutex
	share   int64            // of one tenant that has several requests in flight
	tenants map[string]int64 // bytes held, never 0
}

// NewBudget returns a budget of limit bytes, of which one tenant may hold the part share, from 0 to 1. gauge shows what is held.
func NewBudget(limit int64, share float64, gauge prometheus.Gauge) *Budget {
	b := &Budget{limit: limit, gauge: gauge, tenants: make(map[string]int64)}
	b.SetShare(share)
	return b
}

// SetShare changes the share of a tenant, from 0 to 1. What is held stays.
func (b *Budget) SetShare(share float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share = int64(float64(b.limit) * share)
}

// Limit is the bound of all bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used is what is held at present.
func (b *Budget) Used() int64 { return b.used.Load() }

// Hold returns an empty hold of a tenant.
func (b *Budget) Hold(tenant string) *Hold { return &Hold{budget: b, tenant: tenant} }

// move changes what is held by n bytes, whatever the bounds. b.mu is held.
func (b *Budget) move(tenant string, n int64) {
	b.used.Add(n)
	b.gauge.Add(float64(n))
	if b.tenants[tenant] += n; b.tenants[tenant] == 0 {
		delete(b.tenants, tenant)
	}
}

// Hold is one request's part of the budget. It is not safe for concurrent use.
type Hold struct {
	budget *Budget
	tenant string
	bytes  int64
}

// Bytes is how large the hold is.
func (h *Hold) Bytes() int64 { return h.bytes }

// Set makes the hold n bytes large. What would not fit if there were nothing else is
// refused for good. The tenant's share binds the second of its requests: the first
// may be as large as any.
func (h *Hold) Set(n int64) error {
	b, more := h.budget, n-h.bytes
	if n > b.limit {
		return TooLarge("in_flight_bytes", "the request takes %d bytes or more in memory, at most %d are allowed", n, b.limit)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.tenants[h.tenant]; more > 0 {
		if b.used.Load()+more > b.limit {
			return Unavailable("in_flight_bytes", RetryBusy, "too many bytes in flight, at most %d are allowed", b.limit)
		}
		if held+more > b.share && held > h.bytes {
			return Unavailable("in_flight_share", RetryBusy, "the tenant has too many bytes in flight, at most %d are allowed", b.share)
		}
	}
	b.move(h.tenant, more)
	h.bytes = n
	return nil
}

// Grow makes the hold n bytes larger.
func (h *Hold) Grow(n int64) error { return h.Set(h.bytes + n) }

// Assign makes the hold that of another tenant: who sends a request may be known only when its body is. The bounds are those of Set.
func (h *Hold) Assign(tenant string) error {
	if tenant == h.tenant {
		return nil
	}
	n := h.bytes
	h.Release()
	h.tenant = tenant
	return h.Set(n)
}

// Release gives all back.
func (h *Hold) Release() {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.move(h.tenant, -h.bytes)
	h.bytes = 0
}

// Shrink makes the hold n bytes smaller.
func (h *Hold) Shrink(n int64) {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	n = min(n, h.bytes)
	h.budget.move(h.tenant, -n)
	h.bytes -= n
}

// HandOver moves the hold to what outlives the request, n bytes, and leaves nothing
// for Release. There is always room: what is larger than the body it was made of
// cannot wait for better times.
func (h *Hold) HandOver(n int64) *Hold {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.move(h.tenant, n-h.bytes)
	h.bytes = 0
	return &Hold{budget: h.budget, tenant: h.tenant, bytes: n}
}
