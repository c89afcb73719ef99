package load

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// arrivals are the messages that one subscription has received. It is safe for concurrent use.
type arrivals struct {
	mu         sync.Mutex
	seen       [][]uint64 // bits, by the number of the producer
	distinct   int64
	duplicates int64
	unexpected int64 // messages that must not arrive
}

// note counts a message and returns its due time, or the zero time if it is not timed.
func (a *arrivals) note(payload []byte) (due time.Time) {
	if ns := binary.BigEndian.Uint64(payload); ns > 0 {
		due = time.Unix(0, int64(ns))
	}
	producer, n := binary.BigEndian.Uint32(payload[8:]), binary.BigEndian.Uint32(payload[12:])
	a.mu.Lock()
	defer a.mu.Unlock()
	if producer&abortedMark != 0 {
		a.unexpected++
		return time.Time{}
	}
	for len(a.seen) <= int(producer) {
		a.seen = append(a.seen, nil)
	}
	bits := a.seen[producer]
	for len(bits) <= int(n/64) {
		bits = append(bits, 0)
	}
	a.seen[producer] = bits
	if mask := uint64(1) << (n % 64); bits[n/64]&mask == 0 {
		bits[n/64] |= mask
		a.distinct++
	} else {
		a.duplicates++
	}
	return due
}

func (a *arrivals) counts() (distinct, duplicates, unexpected int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.distinct, a.duplicates, a.unexpected
}

// abortedMark is the bit of the producer's number in messages that must not arrive.
const abortedMark = 1 << 31

// markAborted marks a message of a transaction that will be aborted.
func markAborted(payload []byte) { payload[8] |= abortedMark >> 24 }

// consume runs all consumers until ctx ends.
func (r *run) consume(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i, name := range r.turn.Subscriptions {
		into := r.arrived[i]
		for _, topic := range r.turn.Topics {
			for range r.turn.Workload.ConsumerPerSubscription {
				wg.Go(func() {
					if err := r.driver.Consume(ctx, topic, name, func(payload []byte) { r.receive(into, payload) }); err != nil {
						cancel(err)
					}
				})
			}
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
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
		distinct, _, _ := a.counts()
		most = max(most, messages-distinct)
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
