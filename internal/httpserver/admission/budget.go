// Package admission limits the bytes in flight of requests, and their rate by quotas. Of httpserver
// it may import refusal only.
package admission

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Budget limits the bytes of all requests in flight, and of each tenant's. It refuses instead of
// blocking: a sender can keep its data longer than a queue of requests here could. It is safe for
// concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64 // changed under mu
	gauge prometheus.Gauge

	mu      sync.Mutex
	share   int64            // bytes that one tenant with several requests in flight may hold
	tenants map[string]int64 // bytes held, never 0
}

// NewBudget returns a budget of limit bytes. share is the part of it that one tenant may hold, from
// 0 to 1. gauge shows how many bytes are held.
func NewBudget(limit int64, share float64, gauge prometheus.Gauge) *Budget {
	b := &Budget{limit: limit, gauge: gauge, tenants: make(map[string]int64)}
	b.SetShare(share)
	return b
}

// SetShare changes the share of a tenant, from 0 to 1. It does not change existing holds.
func (b *Budget) SetShare(share float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.share = int64(float64(b.limit) * share)
}

// Limit returns how many bytes may be held.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns how many bytes are held.
func (b *Budget) Used() int64 { return b.used.Load() }

// Hold returns an empty hold for a tenant.
func (b *Budget) Hold(tenant string) *Hold { return &Hold{budget: b, tenant: tenant} }

// add changes the bytes held by n without checking the limits. The caller holds b.mu.
func (b *Budget) add(tenant string, n int64) {
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

// Bytes returns the size of the hold.
func (h *Hold) Bytes() int64 { return h.bytes }

// Set sets the size of the hold to n bytes. More than the budget's limit is refused with 413: it
// would never fit. The tenant's share counts from its second request on: one request alone may be as
// large as the limit.
func (h *Hold) Set(n int64) error {
	b, more := h.budget, n-h.bytes
	if n > b.limit {
		return refusal.TooLarge("in_flight_bytes", "the request takes %d bytes or more in memory, at most %d are allowed", n, b.limit)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.tenants[h.tenant]; more > 0 {
		if b.used.Load()+more > b.limit {
			return refusal.Unavailable("in_flight_bytes", refusal.RetryBusy, "too many bytes in flight, at most %d are allowed", b.limit)
		}
		if held+more > b.share && held > h.bytes {
			return refusal.Unavailable("in_flight_share", refusal.RetryBusy, "the tenant has too many bytes in flight, at most %d are allowed", b.share)
		}
	}
	b.add(h.tenant, more)
	h.bytes = n
	return nil
}

// Grow adds n bytes to the hold. A nil hold has no limit.
func (h *Hold) Grow(n int64) error {
	if h == nil {
		return nil
	}
	return h.Set(h.bytes + n)
}

// Release sets the size of the hold to 0.
func (h *Hold) Release() {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.add(h.tenant, -h.bytes)
	h.bytes = 0
}

// Shrink removes n bytes from the hold.
func (h *Hold) Shrink(n int64) {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	n = min(n, h.bytes)
	h.budget.add(h.tenant, -n)
	h.bytes -= n
}

// Transfer returns a new hold of n bytes, for data that outlives the request, and sets the size of
// this one to 0. It may exceed the limits: data that was accepted is not refused later.
func (h *Hold) Transfer(n int64) *Hold {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.add(h.tenant, n-h.bytes)
	h.bytes = 0
	return &Hold{budget: h.budget, tenant: h.tenant, bytes: n}
}
