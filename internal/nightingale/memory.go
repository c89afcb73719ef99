package nightingale

import (
	"os"
	"runtime/debug"
)

// collectLessOften lets the heap grow to several times what is alive before it is
// collected: requests leave their messages behind as garbage, and what is alive is
// small, so that the collector would run for every few of them. A limit, made of
// the configuration's own bounds, takes the place of the growth when much is alive,
// as during an outage. GOGC and GOMEMLIMIT, where they are set, have the last word.
func collectLessOften(cfg Config) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memoryLimit(cfg))
}

// memoryLimit is what the process may hold before it is collected more often: the
// messages that are pending, the requests in flight, and room to work.
func memoryLimit(cfg Config) int64 {
	const room = 72 << 20
	return room + cfg.Profile.MaxPendingBytes + int64(cfg.Limits.InFlightBytes)
}
