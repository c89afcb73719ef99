package app

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// SpareMemory has the process stay within usual bytes as long as two thirds of them suffice
// for what is alive. The limit of [Runtime.TuneMemory] says what the bounds allow; under load
// the heap would grow up to it, with garbage, however little is alive. Beyond usual, what is
// alive has half as much again as room: the garbage collector is not kept busy. It is called
// before TuneMemory, and ends with it.
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
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() != metrics.KindUint64 {
		return limit
	}
	return min(limit, max(r.usualMemory, int64(live[0].Value.Uint64())/2*3))
}
