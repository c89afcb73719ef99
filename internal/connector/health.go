package connector

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Connection is the part of a source or sink that all other parts depend on.
const Connection = ""

// Health reports the state of a source or sink when it changes. Several parts (the connection, each
// queue) may be unhealthy. Health reports the error of the first by name: Connection comes before
// all others. It is safe for concurrent use.
type Health struct {
	report    func(error)
	unhealthy atomic.Bool

	mu       sync.Mutex // held while reporting: the last report is the current state
	faults   map[string]error
	failedAt time.Time // time of the last Set with an error
	reported *string   // text of the last reported error, empty for healthy; nil before the first report
}

// NewHealth returns a Health that calls report, see [Options.Report]. The first Set reports.
func NewHealth(report func(error)) *Health {
	return &Health{report: report, faults: map[string]error{}}
}

// Set sets the state of a part: nil is healthy.
func (h *Health) Set(part string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.faults, part)
	} else {
		h.faults[part], h.failedAt = err, time.Now()
	}
	h.unhealthy.Store(len(h.faults) > 0)
	var first error
	text := ""
	if names := slices.Sorted(maps.Keys(h.faults)); len(names) > 0 {
		first = h.faults[names[0]]
		text = first.Error()
	}
	if h.reported == nil || text != *h.reported {
		h.reported = &text
		h.report(first)
	}
}

// Unhealthy reports whether a part is unhealthy. It takes no lock.
func (h *Health) Unhealthy() bool { return h.unhealthy.Load() }

// QuietFor reports whether a part is unhealthy and the last error was set at least d ago.
func (h *Health) QuietFor(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.faults) > 0 && time.Since(h.failedAt) >= d
}
