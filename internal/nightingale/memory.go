package nightingale

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/aviaryhq/aviary/internal/app"
)

const (
	// gcPercent lets the heap grow to five times what is alive before it is
	// collected, within the limit: what is alive is little, a few requests, and
	// collecting it as often as Go does by default is a fifth of the CPU time.
	gcPercent = 400
	// memoryBase is for all that is not a body or a message.
	memoryBase = 64 << 20
)

// memoryLimit is what the configuration lets the process hold, roughly: the bodies
// of requests in flight, the publish queue, and the rest.
func memoryLimit(cfg Config) int64 {
	return int64(cfg.Limits.InFlightBytes) + cfg.Profile.MaxPendingBytes + memoryBase
}

// tuneMemory spends memory, as far as the limits allow it anyway, to save CPU time.
// GOGC and GOMEMLIMIT, where given, are left alone.
func tuneMemory(rt *app.Runtime, cfg Config) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := debug.SetMemoryLimit(memoryLimit(cfg))
	percent := debug.SetGCPercent(gcPercent)
	rt.OnStop("memory", func(context.Context) error {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		return nil
	})
}
