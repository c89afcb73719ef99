package app

import (
	"context"
	"os"
	"runtime/debug"

	"go.uber.org/zap"
)

const (
	// gcPercent lets the heap grow to five times what is alive before it is collected,
	// within the limit: what is alive in services that pass things on is little, and
	// collecting it as often as Go does by default is a fifth of their CPU time.
	gcPercent = 400
	// usualLimit is up to where gcPercent holds. The more a process may hold, the less of
	// it is free again at any time, and the dearer are multiples of it: beyond, the
	// percentage falls in proportion, down to Go's own.
	usualLimit, leastPercent = 256 << 20, 100
)

// TuneMemory spends memory, as far as the service's own bounds allow it anyway, to
// save CPU time. need is, in bytes, what those bounds let the process hold, with the
// room that the garbage collector needs beside it. Where a control group of Linux leaves
// the process less, nine tenths of that are the limit. TuneMemory is called again when
// the bounds have changed. GOGC and GOMEMLIMIT, where given, are left alone.
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
		r.Log.Warn("the bounds of this configuration allow more memory than there is: under load the garbage collector will take much CPU time",
			zap.Int64("needed_bytes", need), zap.Int64("limit_bytes", limit))
	default:
		r.Log.Debug("memory limit", zap.Int64("limit_bytes", limit))
	}
}

func percentFor(limit int64) int {
	return int(min(max(gcPercent*usualLimit/max(limit, 1), leastPercent), gcPercent))
}
