package publish

import (
	"cmp"
	"sync/atomic"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// A run of records without a key stays on one partition, so that spreading them does not shrink
// batches to nothing.
const (
	runRecords = 256
	runBytes   = 128 << 10
	runsAtOnce = 8 // see Record.SpreadHint
)

// router picks partitions for records. It is safe for concurrent use.
type router struct {
	routing Routing
	runs    [runsAtOnce]partitionRun
}

// partitionRun is where a run has got to.
type partitionRun struct {
	current atomic.Uint32 // its partition, counted from the run's own index
	records atomic.Int64  // routed in it
	bytes   atomic.Int64
	_       [40]byte // the next one has a separate cache line
}

// route returns the partition index of r among n, or -1 for none. full reports whether a
// partition's queue is full now.
func (rt *router) route(r *record.Record, n int, full func(int) bool) int {
	key := cmp.Or(r.Key, r.OrderingKey)
	switch {
	case rt.routing == RouteExplicit:
		if r.Partition < 0 || r.Partition >= n {
			return -1
		}
		return r.Partition
	case n == 1:
		return 0
	case rt.routing == RouteKeyHash && key != "":
		return int(javaStringHash(key) % uint32(n))
	}
	own := uint32(r.SpreadHint) % runsAtOnce
	run := &rt.runs[own]
	i := int((run.current.Load() + own) % uint32(n))
	if run.records.Add(1) < runRecords && run.bytes.Add(record.SizeOf(r)) < runBytes && !full(i) {
		return i
	}
	// Racing callers may end one run twice, which costs evenness, not order.
	run.records.Store(0)
	run.bytes.Store(0)
	steps := 1
	for steps < n && full((i+steps)%n) {
		steps++
	}
	run.current.Add(uint32(steps))
	return (i + steps) % n
}

// javaStringHash is Java's String.hashCode over the key's bytes, the default of Pulsar's clients,
// pulsar-client-go included (internal/hash.go).
func javaStringHash(s string) uint32 {
	var h uint32
	for i := range len(s) {
		h = 31*h + uint32(s[i])
	}
	return h
}
