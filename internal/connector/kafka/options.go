package kafka

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// system is the name of Kafka in a message's origin.
const system = "kafka"

// Options are what a source and a sink need besides their configuration. The zero value works.
type Options struct {
	// Log takes what is to be known and is no trouble of the connection. Default: nothing is logged.
	Log *zap.Logger
	// Report is told of trouble with the connection by an error that names the brokers, the topic or both, and of its end by nil. It is called from
	// one goroutine at a time, when something has changed only, and must not block.
	Report func(error)
	// Metrics of the route. Default: some that are not shown.
	Metrics *RouteMetrics
	// Patience ends when a stop must not wait any longer for messages on their way, whatever drain_timeout says. Default: never.
	Patience context.Context
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if o.Patience == nil {
		o.Patience = context.Background()
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry()).Route("")
	}
	return o
}

// health passes changes on to Report.
type health struct {
	report func(error)
	ill    atomic.Bool // there is trouble on record

	mu    sync.Mutex
	known bool
	text  string
	since time.Time // of the last trouble
}

// trouble reports err unless it says what the last one did.
func (h *health) trouble(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.since = time.Now()
	h.ill.Store(true)
	if text := err.Error(); !h.known || text != h.text {
		h.known, h.text = true, text
		h.report(err)
	}
}

// well reports that all is well.
func (h *health) well() {
	h.ill.Store(false)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.known || h.text != "" {
		h.known, h.text = true, ""
		h.report(nil)
	}
}

// quietFor tells whether there is trouble on record, the last of it at least d ago.
func (h *health) quietFor(d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text != "" && time.Since(h.since) >= d
}

// backoff is the pause before the next attempt to connect: it doubles, with jitter, up to five seconds.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait returns false when ctx ended.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, 200*time.Millisecond), 5*time.Second)
	timer := time.NewTimer(b.next/2 + rand.N(b.next))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
