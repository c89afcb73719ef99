package app

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// SpareMemory has the process stay within usual bytes as long as two thirds of them suffice
// for what is alive. The limit of [Runtime.TuneMemory] says what the bounds allow; under load
// the heap would grow up to it, with garbage, however little is alive. Beyond usual, what is
// alive has half as much again as room, beside stacks and the runtime's own: the garbage
// collector is not kept busy. It is called before TuneMemory, and ends with it.
func (r *Runtime) SpareMemory(usual int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usualMemory = usual
	r.afterCollection(new(mark))
}

// mark is an object whose finalizer says that there was a collection.
type mark struct{ _ [16]byte }

// afterCollection sets the limit anew after each collection.
func (r *Runtime) afterCollection(m *mark) {
	runtime.SetFinalizer(m, func(m *mark) {
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

// sparedLimit is the limit for what is alive now. r.mu is held.
func (r *Runtime) sparedLimit(limit int64) int64 {
	if r.usualMemory == 0 {
		return limit
	}
	live, beside, ok := held()
	if !ok {
		return limit
	}
	return min(limit, max(r.usualMemory, live/2*3+beside))
}

// held is what the last collection left alive, and what counts against the limit beside
// objects, from which no collection gets anything back: stacks, and the runtime's own.
func held() (live, beside int64, ok bool) {
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
