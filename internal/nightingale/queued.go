package nightingale

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// How a request's 204 is to be understood.
const (
	ackBroker = "broker" // every message is acknowledged by the broker
	ackQueued = "queued" // every message is in the publisher's queue, in memory
)

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
