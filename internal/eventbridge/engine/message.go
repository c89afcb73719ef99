package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// message is an event whose copies are being stored. Its delivery is completed when all of them
// are.
type message struct {
	pending   messaging.PendingDelivery
	left      atomic.Int32 // copies that are not done, and one for the matching itself
	failed    atomic.Pointer[error]
	published time.Time
	metrics   *busMetrics
}

// errGivenUp: this engine gives up the partition. The next owner stores the missing copies.
var errGivenUp = errors.New("the engine releases the partition")

// done notes that a copy is stored or, with an error, that it will not be.
func (m *message) done(err error) {
	switch {
	case err == nil:
	case errors.Is(err, errGivenUp): // counts more than a refused copy: another copy may be missing
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
