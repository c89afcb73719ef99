package publish

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// What an answer 204 means.
const (
	AckBroker = "broker" // the broker has acknowledged every message
	AckQueued = "queued" // every message is in the publisher's queue, in memory
)

// ackMode says when a request's messages count as written.
type ackMode struct {
	queued *dropCounter  // not nil: once they are queued; nil: once the broker has them
	late   time.Duration // after which the sink is unavailable; 0: only the publishing context decides
}

// newAckMode reads the configuration.
func newAckMode(cfg Config, log *zap.Logger, m *Metrics) ackMode {
	a := ackMode{late: cfg.RequestTimeout}
	if cfg.Ack == AckQueued {
		a.queued = &dropCounter{log: log.Named("sink"), dropped: m.dropped}
	}
	return a
}

// watch calls note unless the caller calls stop within a.late.
func (a ackMode) watch(note func()) (stop func()) {
	if a.late == 0 {
		return func() {}
	}
	timer := time.AfterFunc(a.late, note)
	return func() { timer.Stop() }
}

// dropCounter counts and logs messages that were acknowledged to the sender when they were queued,
// and could not be stored later.
type dropCounter struct {
	log     *zap.Logger // limits repeated lines
	dropped prometheus.Counter
}

func (d *dropCounter) note(err error) {
	d.dropped.Inc()
	d.log.Error("lost a message that was already acknowledged to its sender (ack: queued)", zap.Error(err))
}

// detach stops waiting for the outcome: it counts later failures as dropped messages. If a record
// has already failed, it returns false and changes nothing, because the sender can still get the
// error.
func (o *outcome) detach(drops *dropCounter) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || len(o.tooLarge) > 0 {
		return false
	}
	o.drops = drops
	return true
}
