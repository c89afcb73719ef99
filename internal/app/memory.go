package app

import (
	"context"
	"os"
	"runtime/debug"

	"go.uber.org/zap"
)

const (
	// gcPercent lets the heap grow to five times its live objects before a collection, within the
	// limit. Services that pass data on have few live objects: to collect as often as Go does by
	// default would cost a fifth of their CPU time.
	gcPercent = 400
	// usualLimit is the limit up to which gcPercent holds. The more memory a process may hold, the
	// less of it is free at any time, and the more its multiples cost: above usualLimit the
	// percentage falls in proportion, down to leastPercent, Go's default.
	usualLimit, leastPercent = 256 << 20, 100
)

// TuneMemory spends memory to save CPU time, as far as the service's own bounds allow that. need is
// how many bytes these bounds let the process hold, with the room that the garbage collector needs.
// If a control group of Linux allows the process less, the limit is nine tenths of that. TuneMemory
// is called again when the bounds have changed. If GOGC or GOMEMLIMIT is set, it changes nothing.
func (r *Runtime) TuneMemory(need int64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := need
	if group, ok := cgroupLimit(os.DirFS("/")); ok {
		limit = min(need, group/10*9)
	}
	r.mu.Lock()
	before, percent := debug.SetMemoryLimit(r.sparedLimit(limit)), debug.SetGCPercent(percentFor(limit))
	first := r.memoryLimit == 0
	same := r.memoryLimit == limit
	r.memoryLimit = limit
	r.mu.Unlock()
	if first {
		r.OnStop("memory", func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.usualMemory = 0
			debug.SetMemoryLimit(before)
			debug.SetGCPercent(percent)
			return nil
		})
	}
	switch {
	case same:
	case limit < need:
		r.Log.Warn("the configured limits exceed the memory of the process: under load the garbage collector takes much CPU time",
			zap.Int64("needed_bytes", need), zap.Int64("limit_bytes", limit))
	default:
		r.Log.Debug("memory limit", zap.Int64("limit_bytes", limit))
	}
}

func percentFor(limit int64) int {
	return int(min(max(gcPercent*usualLimit/max(limit, 1), leastPercent), gcPercent))
}
