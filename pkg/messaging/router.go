package messaging

import "sync/atomic"

// A run of records without a key stays on one partition for runRecords or
// runBytes, so that spreading them does not shrink batches to nothing.
const (
	runRecords = 256
	runBytes   = 128 << 10
)

// router picks partitions for records. It is safe for concurrent use.
type router struct {
	routing Routing
	current atomic.Uint32 // the partition of the present run
	records atomic.Int64  // records and bytes routed in the present run
	bytes   atomic.Int64
}

// route returns the partition index of r among n, or -1 for none. full tells of a
// partition whether its queue is full now.
func (rt *router) route(r *Record, n int, full func(int) bool) int {
	switch {
	case rt.routing == RouteExplicit:
		if r.Partition < 0 || r.Partition >= n {
			return -1
		}
		return r.Partition
	case n == 1:
		return 0
	case rt.routing == RouteKeyHash && r.Key != "":
		return int(javaStringHash(r.Key) % uint32(n))
	}
	i := int(rt.current.Load()) % n
	if rt.records.Add(1) < runRecords && rt.bytes.Add(r.size()) < runBytes && !full(i) {
		return i
	}
	// Racing callers may end one run twice, which costs evenness, not order.
	rt.records.Store(0)
	rt.bytes.Store(0)
	next := i
	for range n {
		next = (next + 1) % n
		if !full(next) {
			break
		}
	}
	rt.current.Store(uint32(next))
	return next
}

// javaStringHash is Java's String.hashCode over the key's bytes, the default
// hashing scheme of Pulsar's clients; pulsar-client-go computes it the same way
// (internal/hash.go), so both put a key on the same partition.
func javaStringHash(s string) uint32 {
	var h uint32
	for i := range len(s) {
		h = 31*h + uint32(s[i])
	}
	return h
}
