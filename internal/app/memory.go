package app

import (
	"context"
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to five times what is alive before it is collected,
// within the limit: what is alive in services that pass things on is little, and
// collecting it as often as Go does by default is a fifth of their CPU time.
const gcPercent = 400

// TuneMemory spends memory, as far as the service's own bounds allow it anyway, to
// save CPU time. limit is, in bytes, what those bounds let the process hold, roughly.
// GOGC and GOMEMLIMIT, where given, are left alone.
func (r *Runtime) TuneMemory(limit int64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	before := debug.SetMemoryLimit(limit)
	percent := debug.SetGCPercent(gcPercent)
	r.OnStop("memory", func(context.Context) error {
		debug.SetMemoryLimit(before)
		debug.SetGCPercent(percent)
		return nil
	})
}
