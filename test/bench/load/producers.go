package load

import (
	"context"
	"encoding/binary"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
)

// keys is how many keys messages have, where they have any.
const keys = 10_007

// step is the least time between two wakings of a loop. What is due in it is due at its
// beginning: a sleep for each message would cost more than the message.
const step = 500 * time.Microsecond

// sender is one producer with what it sends.
type sender struct {
	producer Producer
	number   uint32        // of the producer
	sent     atomic.Uint32 // messages, which numbers them
}

// unthrottledTimed is how many messages one is timed of that are sent as fast as possible: a prime
// number, so that each of several producers has its turn.
const unthrottledTimed = 17

// sending is a time of sending, by all producers.
type sending struct {
	run      *run
	began    time.Time
	until    time.Time
	left     atomic.Int64  // messages, where they are bounded
	interval time.Duration // of one loop; 0: as fast as possible
	group    int           // messages of a loop that are due at the same time
}

// send lets all producers send until then, or so many messages if that is not 0. It returns when
// all have their outcome.
func (r *run) send(ctx context.Context, until time.Time, messages int, rate float64) error {
	s := &sending{run: r, began: time.Now(), until: until}
	s.left.Store(int64(messages))
	if messages == 0 {
		s.left.Store(1 << 62)
	}
	// A caller has a loop of its own. What is asynchronous needs no more loops than cores: a loop
	// sends by several producers in turn.
	loops := len(r.senders) * r.turn.Side.Callers
	if loops == 0 {
		loops = min(len(r.senders), runtime.GOMAXPROCS(0))
	}
	if rate > 0 {
		s.interval = time.Duration(float64(loops) / rate * float64(time.Second))
		s.group = max(int(step/s.interval), 1)
	}
	var wg sync.WaitGroup
	for i := range loops {
		var own []*sender
		for k := i % len(r.senders); k < len(r.senders); k += loops {
			own = append(own, r.senders[k])
		}
		// Loops begin at different times of the interval, so that the load is even.
		wg.Go(func() { s.loop(ctx, own, s.interval*time.Duration(i)/time.Duration(loops)) })
	}
	wg.Wait()
	for _, one := range r.senders {
		if err := one.producer.Flush(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// loop sends until the end. With a rate, a message is due at a time that does not depend on when
// earlier ones were sent, and its latency begins then (no coordinated omission).
func (s *sending) loop(ctx context.Context, senders []*sender, offset time.Duration) {
	calls := s.run.turn.Side.Callers > 0
	for n := 0; s.left.Add(-1) >= 0; n++ {
		var due time.Time
		switch {
		case s.interval > 0:
			due = s.began.Add(offset + time.Duration(n/s.group*s.group)*s.interval)
			if due.After(s.until) {
				return
			}
			if n%s.group == 0 {
				sleepUntil(ctx, due)
			}
		case calls || n%unthrottledTimed == 0:
			// The clock is not read for each message, to keep it off the hot path.
			if due = time.Now(); due.After(s.until) {
				return
			}
		}
		if ctx.Err() != nil || s.run.stopped.Load() {
			return
		}
		to := senders[n%len(senders)]
		m := s.run.message(to, due)
		if calls {
			s.run.report(due, to.producer.Call(ctx, m))
		} else {
			to.producer.Send(ctx, m, due)
		}
	}
}

// message makes the next message of a sender. One that will be consumed holds its number, and when
// it was due.
func (r *run) message(from *sender, due time.Time) Message {
	n := from.sent.Add(1) - 1
	m := Message{Payload: r.payloads[int(n)%len(r.payloads)]}
	switch r.turn.Workload.KeyDistributor {
	case workload.KeyRoundRobin:
		m.Key = r.keys[int(n)%keys]
	case workload.RandomNano:
		m.Key = r.keys[time.Now().Nanosecond()%keys]
	}
	if r.turn.Workload.SubscriptionsPerTopic > 0 {
		p := append([]byte(nil), m.Payload...)
		if !due.IsZero() {
			binary.BigEndian.PutUint64(p, uint64(due.UnixNano()))
		} else {
			binary.BigEndian.PutUint64(p, 0)
		}
		binary.BigEndian.PutUint32(p[8:], from.number)
		binary.BigEndian.PutUint32(p[12:], n)
		m.Payload = p
	}
	return m
}

// report takes the outcome of a message.
func (r *run) report(due time.Time, err error) {
	if err != nil {
		r.fail(err)
		return
	}
	r.acked.Add(1)
	if !due.IsZero() {
		r.publish.record(time.Since(due))
	}
}

func keyNames() []string {
	all := make([]string, keys)
	for i := range all {
		all[i] = "key-" + strconv.Itoa(i)
	}
	return all
}
