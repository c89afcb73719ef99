package load

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bitset"
	"golang.org/x/sync/errgroup"
)

// arrivals are the messages that one subscription has received. It is safe for concurrent use.
type arrivals struct {
	mu                               sync.Mutex
	seen                             map[uint32]*bitset.BitSet // numbers of messages, by the number of the producer
	distinct, duplicates, unexpected atomic.Int64              // unexpected ones must not arrive
}

// note counts a message and returns its due time, or the zero time if it is not timed.
func (a *arrivals) note(payload []byte) (due time.Time) {
	if ns := binary.BigEndian.Uint64(payload); ns > 0 {
		due = time.Unix(0, int64(ns))
	}
	producer, n := binary.BigEndian.Uint32(payload[8:]), uint(binary.BigEndian.Uint32(payload[12:]))
	if producer&abortedMark != 0 {
		a.unexpected.Add(1)
		return time.Time{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen[producer] == nil {
		a.seen[producer] = &bitset.BitSet{}
	}
	if a.seen[producer].Test(n) {
		a.duplicates.Add(1)
	} else {
		a.seen[producer].Set(n)
		a.distinct.Add(1)
	}
	return due
}

// abortedMark is the bit of the producer's number in messages that must not arrive.
const abortedMark = 1 << 31

// markAborted marks a message of a transaction that will be aborted.
func markAborted(payload []byte) { payload[8] |= abortedMark >> 24 }

// consume runs all consumers until ctx ends or one of them fails.
func (r *run) consume(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, name := range r.turn.Subscriptions {
		for _, topic := range r.turn.Topics {
			for range r.turn.Workload.ConsumerPerSubscription {
				g.Go(func() error {
					err := r.driver.Consume(ctx, topic, name, func(payload []byte) { r.receive(r.arrived[i], payload) })
					if ctx.Err() == nil {
						return err
					}
					return nil // it was stopped
				})
			}
		}
	}
	return g.Wait()
}

func (r *run) receive(into *arrivals, payload []byte) {
	if r.tap != nil {
		r.tap.received(payload)
	}
	due := into.note(payload)
	r.received.Add(1)
	if !due.IsZero() && r.turn.Stored == 0 && due.UnixNano() >= r.measuredFrom.Load() {
		r.endToEnd.record(time.Since(due))
	}
}

// behind returns how many of the given number of messages the slowest subscription lacks.
func (r *run) behind(messages int64) int64 {
	var most int64
	for _, a := range r.arrived {
		most = max(most, messages-a.distinct.Load())
	}
	return most
}

// arrivalPoll is the time between two checks of what has arrived. A signal for each message would
// cost consumers more than counting it.
const arrivalPoll = 2 * time.Millisecond

// awaitArrivals waits until no subscription is more than so many messages behind those that are
// acknowledged. It returns false if limit passes while nothing arrives, or ctx ends.
func (r *run) awaitArrivals(ctx context.Context, behind int64, limit time.Duration) bool {
	timeout, poll := time.NewTimer(limit), time.NewTicker(arrivalPoll)
	defer timeout.Stop()
	defer poll.Stop()
	received := r.received.Load()
	for r.behind(r.acked.Load()) > behind {
		if now := r.received.Load(); now != received {
			received = now
			timeout.Reset(limit)
		}
		select {
		case <-poll.C:
		case <-timeout.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}
