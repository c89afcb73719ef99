package rabbitmq

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// system is the name of RabbitMQ in the provenance of messages.
const system = "rabbitmq"

// Options are what a source or sink depends on. Each may be nil.
type Options struct {
	Log *zap.Logger
	// Report is told an error for people when the connection, a queue or an exchange is in trouble, and nil when all is well again. It is called
	// from one goroutine at a time and must not block.
	Report  func(error)
	Metrics *PartMetrics
	// Patience ends when a stop must not wait any longer for messages on their way, whatever stop_timeout says. Default: never.
	Patience context.Context
}

func (o Options) patience() context.Context {
	if o.Patience == nil {
		return context.Background()
	}
	return o.Patience
}

func (o Options) metrics() *PartMetrics {
	if o.Metrics == nil {
		return NewMetrics(prometheus.NewRegistry()).Of("", "")
	}
	return o.Metrics
}

// logger is that of the part: whose it is, source or sink, is in the name that the caller gave.
func (o Options) logger() *zap.Logger {
	if o.Log == nil {
		return zap.NewNop()
	}
	return o.Log.Named("rabbitmq")
}

// health turns the state of several parts (the connection, each queue) into one that is reported when it changes.
type health struct {
	report func(error)

	mu    sync.Mutex
	ills  map[string]error
	told  string
	spoke bool
}

func newHealth(report func(error)) *health {
	if report == nil {
		report = func(error) {}
	}
	return &health{report: report, ills: map[string]error{}}
}

// set says how part is: err is nil when it is well. Of several that are ill the first by name is reported; the connection's comes before all, as
// the others follow from it.
func (h *health) set(part string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.ills, part)
	} else {
		h.ills[part] = err
	}
	var worst error
	if names := slices.Sorted(maps.Keys(h.ills)); len(names) > 0 {
		worst = h.ills[names[0]]
	}
	text := ""
	if worst != nil {
		text = worst.Error()
	}
	if h.spoke && text == h.told {
		return
	}
	h.spoke, h.told = true, text
	h.report(worst)
}

// partConnection sorts before every queue's name.
const partConnection = ""
