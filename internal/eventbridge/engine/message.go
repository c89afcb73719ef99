package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// message is an event whose copies are being stored. Its verdict is given once all of them are.
type message struct {
	pending   messaging.PendingDelivery
	left      atomic.Int32 // copies, and one for the matching itself
	failed    atomic.Pointer[error]
	published time.Time
	metrics   *busMetrics
}

// errGivenUp: this engine gives the partition up, and the next owner stores what is missing.
var errGivenUp = errors.New("the engine gives the partition up")

// done notes that a copy is stored, or, with an error, that it will not be.
func (m *message) done(err error) {
	switch {
	case err == nil:
	case errors.Is(err, errGivenUp): // more than a copy that is refused: another copy may be missing
		m.failed.Store(&err)
	default:
		m.failed.CompareAndSwap(nil, &err)
	}
	if m.left.Add(-1) > 0 {
		return
	}
	if failed := m.failed.Load(); failed != nil {
		m.pending.Complete(*failed)
		return
	}
	m.metrics.age.Observe(max(time.Since(m.published), 0).Seconds())
	m.pending.Complete(nil)
}
