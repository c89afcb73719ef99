package load

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
)

// keys is the number of different keys, for workloads with keys.
const keys = 10_007

// wakeInterval is the minimum time between two wake-ups of a loop. All messages of an interval are
// due at its beginning: a sleep for each message would cost more than the message.
const wakeInterval = 500 * time.Microsecond

// overrun is how long messages that are due may be sent after the end, where the rate is above
// what the cluster takes. The rest is counted as not sent.
const overrun = 10 * time.Second

// sender is one producer and its counters.
type sender struct {
	producer Producer
	number   uint32        // of the producer
	sent     atomic.Uint32 // messages sent; the number of the next one
}

// timedEvery: without a rate, one of so many messages is timed. It is a prime number, so that
// messages of every producer are timed.
const timedEvery = 17

// sending is one call of send: all producers send until it ends.
type sending struct {
	run      *run
	began    time.Time
	until    time.Time
	left     atomic.Int64  // messages still to send
	interval time.Duration // of one loop; 0: as fast as possible
	group    int           // messages of a loop that are due at the same time
}

// send makes all producers send for a time, or until they have sent the given number of messages
// (0: no limit). It returns when every message is acknowledged or has failed.
func (r *run) send(ctx context.Context, d time.Duration, messages int, rate float64) error {
	s := &sending{run: r, began: time.Now(), until: time.Now().Add(d)}
	s.left.Store(int64(cmp.Or(messages, math.MaxInt)))
	// Each caller has its own loop. Asynchronous sending needs no more loops than cores: a loop uses
	// several producers one after the other.
	loops := len(r.senders) * r.turn.Side.Callers
	if loops == 0 {
		loops = min(len(r.senders), runtime.GOMAXPROCS(0))
	}
	if rate > 0 {
		s.interval = max(time.Duration(float64(loops)/rate*float64(time.Second)), 1)
		s.group = max(int(wakeInterval/s.interval), 1)
	}
	var wg sync.WaitGroup
	for i := range loops {
		var own []*sender
		for k := i % len(r.senders); k < len(r.senders); k += loops {
			own = append(own, r.senders[k])
		}
		// The loops start at different points of the interval, so that the load is even.
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
				if time.Since(s.until) > overrun {
					s.run.unsent.Add(int64(s.until.Sub(due) / s.interval))
					return
				}
				sleepUntil(ctx, due)
			}
		case calls || n%timedEvery == 0:
			// Reading the clock for each message would slow the loop down.
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

// message returns the next message of a sender. If it will be consumed, it holds its number and its
// due time.
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
		p, ns := bytes.Clone(m.Payload), uint64(0)
		if !due.IsZero() {
			ns = uint64(due.UnixNano())
		}
		binary.BigEndian.PutUint64(p, ns)
		binary.BigEndian.PutUint32(p[8:], from.number)
		binary.BigEndian.PutUint32(p[12:], n)
		m.Payload = p
	}
	return m
}

// report counts the outcome of a message and records its latency.
func (r *run) report(due time.Time, err error) {
	if err != nil {
		r.failed.Add(1)
		r.firstFailure.Do(func() { fmt.Fprintln(os.Stderr, "bench: first failed message:", err) })
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
