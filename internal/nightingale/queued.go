package nightingale

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// How a request's 204 is to be understood.
const (
	ackBroker = "broker" // every message is acknowledged by the broker
	ackQueued = "queued" // every message is in the publisher's queue, in memory
)

// acknowledging is when a request's messages are taken to be written.
type acknowledging struct {
	queued *dropCounter  // once they are queued; nil: once the broker has them
	late   time.Duration // after which the sink is away; 0: with the publishing context only
}

// newAcknowledging is of the configuration.
func newAcknowledging(cfg Config, log *zap.Logger, m *metrics) acknowledging {
	a := acknowledging{late: cfg.RequestTimeout}
	if cfg.Ack == ackQueued {
		a.queued = &dropCounter{log: log.Named("sink"), dropped: m.dropped}
	}
	return a
}

// watch calls note when stop is not called in time.
func (a acknowledging) watch(note func()) (stop func()) {
	if a.late == 0 {
		return func() {}
	}
	timer := time.AfterFunc(a.late, note)
	return func() { timer.Stop() }
}

// reasonRecordTooLarge is the one reason of a publishing stage that is final.
const reasonRecordTooLarge = "record_too_large"

// dropCounter notes the messages that were answered for when they were queued, and
// that could not be stored after all.
type dropCounter struct {
	log     *zap.Logger // thins out what repeats
	dropped prometheus.Counter
}

func (d *dropCounter) note(err error) {
	d.dropped.Inc()
	d.log.Error("lost a message that was queued and answered for", zap.Error(err))
}

// leave stops waiting for the outcome: what fails from here on is noted as dropped.
// It reports false, and changes nothing, when something has failed already: then the
// sender can still be told.
func (o *outcome) leave(drops *dropCounter) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return false
	}
	o.drops = drops
	return true
}
