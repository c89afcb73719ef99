package app

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// SpareMemory keeps the process within usual bytes as long as live objects take no more than two
// thirds of them. The limit of [Runtime.TuneMemory] is the upper bound; under load the heap would
// grow up to it with garbage, however few objects are live. Beyond usual, the limit is one and a
// half times the live objects, plus stacks and the runtime's own memory, so that the garbage
// collector does not run too often. It is called before TuneMemory, and ends with it.
func (r *Runtime) SpareMemory(usual int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usualMemory = usual
	r.afterCollection(new(collectionMarker))
}

// collectionMarker is an object whose finalizer runs after a garbage collection.
type collectionMarker struct{ _ [16]byte }

// afterCollection sets the limit again after each collection.
func (r *Runtime) afterCollection(m *collectionMarker) {
	runtime.SetFinalizer(m, func(m *collectionMarker) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.usualMemory == 0 {
			return
		}
		if r.memoryLimit > 0 {
			debug.SetMemoryLimit(r.sparedLimit(r.memoryLimit))
		}
		r.afterCollection(m)
	})
}

// sparedLimit returns the limit for the objects that are live now. The caller holds r.mu.
func (r *Runtime) sparedLimit(limit int64) int64 {
	if r.usualMemory == 0 {
		return limit
	}
	live, beside, ok := heapUsage()
	if !ok {
		return limit
	}
	return min(limit, max(r.usualMemory, live/2*3+beside))
}

// heapUsage returns the live bytes after the last collection, and the bytes beside objects that
// count against the limit and that no collection frees: stacks and the runtime's own memory.
func heapUsage() (live, beside int64, ok bool) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	sizes := make([]int64, len(samples))
	for i, s := range samples {
		if s.Value.Kind() != metrics.KindUint64 {
			return 0, 0, false
		}
		sizes[i] = int64(s.Value.Uint64())
	}
	beside = sizes[1]
	for _, objects := range sizes[2:] {
		beside -= objects
	}
	return sizes[0], max(beside, 0), true
}
