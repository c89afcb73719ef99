//go:build !race

package messaging_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/history"
)

// publish publishes a stream.
func (m *modelRun) publish(s publisherPlan) {
	time.Sleep(s.begin)
	if s.raw {
		m.publishRaw(s)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelLimit)
	defer cancel()
	client, err := messaging.Dial(ctx, m.server.config(s.name))
	if err != nil {
		m.violate(history.Unknown, "dial: %v", err)
		return
	}
	if p := m.open(ctx, client, s); p != nil {
		m.stream(p, s)
	}
	if err := client.Close(ctx); err != nil && !errors.Is(err, messaging.ErrUnacknowledged) {
		m.violate(history.Unknown, "close client of %s: %v", s.name, err)
	}
}

// open opens the publisher, in the end.
func (m *modelRun) open(ctx context.Context, client *messaging.Client, s publisherPlan) *messaging.Publisher {
	for {
		p, err := client.Publisher(ctx, m.server.topic(), s.profile)
		if err == nil {
			m.noteNow("%s: open", s.name)
			close(m.opened[s.name])
			return p
		}
		if !m.plan.exclusive || ctx.Err() != nil {
			m.violate(history.Pinned, "open publisher %s: %v", s.name, err)
			return nil
		}
		time.Sleep(5 * time.Millisecond) // another owns the topic
	}
}

// publishRaw lets the server store batches of its own.
func (m *modelRun) publishRaw(s publisherPlan) {
	for n := 0; n < s.records; {
		size := min(1+m.chance(s.name, n, "batch")%s.profile.BatchRecords, s.records-n)
		batch := make([]modelRecord, 0, size)
		for range size {
			batch = append(batch, m.newRecord(s.name, n))
			m.fate(m.addRecord(s.name, n), history.Stored, nil)
			n++
		}
		m.server.publish(m.chance(s.name, n, "partition")%max(m.plan.partitions, 1), batch)
		m.pause(s, n)
	}
}

func (m *modelRun) pause(s publisherPlan, n int) {
	if s.pause > 0 && n%4 == 0 {
		time.Sleep(time.Duration(m.chance(s.name, n, "pause") % int(4*s.pause)))
	}
}

// modelStream is a publisher's records in flight.
type modelStream struct {
	m       *modelRun
	s       publisherPlan
	p       *messaging.Publisher
	pending atomic.Int64
}

func (m *modelRun) stream(p *messaging.Publisher, s publisherPlan) {
	st := &modelStream{m: m, s: s, p: p}
	for n := 0; n < s.records; {
		size := 1
		if m.chance(s.name, n, "call")%4 == 0 {
			size = min(1+m.chance(s.name, n, "size")%8, s.records-n)
		}
		st.call(n, size)
		n += size
		m.pause(s, n)
	}
	// A publisher that lost its topic has nothing to wait for; one that shares it stores
	// everything.
	timeout := modelTimeout
	if m.plan.exclusive {
		timeout = 4 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := p.Close(ctx)
	m.noteNow("%s: Close: %v", s.name, err)
	if err != nil && !m.plan.exclusive {
		m.violate(history.Pinned, "close of %s: %v", s.name, err)
	}
}

// call publishes some records in one of the ways that there are.
func (st *modelStream) call(n, size int) {
	rs := make([]*messaging.Record, size)
	known := make([]*history.Record, size)
	for i := range rs {
		r := st.m.newRecord(st.s.name, n+i)
		rs[i] = &messaging.Record{Key: r.key, OrderingKey: r.ordering, Payload: []byte(r.payload)}
		known[i] = st.m.addRecord(st.s.name, n+i)
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelTimeout)
	defer cancel()
	endsEarly, ended := st.m.chance(st.s.name, n, "impatient")%1000 < st.s.earlyEnds, false
	if endsEarly {
		if st.m.chance(st.s.name, n, "ended")%2 == 0 {
			cancel()
			ended = true
		} else {
			var end context.CancelFunc
			ctx, end = context.WithTimeout(ctx, 2*time.Millisecond)
			defer end()
		}
	}
	if size == 1 && st.m.chance(st.s.name, n, "async")%8 > 0 {
		st.async(ctx, rs[0], known[0])
		return
	}
	err := st.p.Publish(ctx, rs...)
	for _, r := range known {
		switch {
		case err == nil:
			st.m.fate(r, history.Stored, nil)
		case ended || size == 1 && errors.Is(err, messaging.ErrQueueFull):
			st.m.fate(r, history.Refused, err)
		default:
			st.m.fate(r, history.Perhaps, err)
		}
	}
}

// fateOf is what an outcome says of a record: what was not accepted is never stored.
func fateOf(err error) history.Fate {
	switch {
	case err == nil:
		return history.Stored
	case errors.Is(err, messaging.ErrQueueFull), errors.Is(err, messaging.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return history.Refused
	default:
		return history.Perhaps
	}
}

// async publishes one record and holds what is pending against its bound.
func (st *modelStream) async(ctx context.Context, r *messaging.Record, known *history.Record) {
	st.pending.Add(1)
	st.p.PublishAsync(ctx, r, func(_ messaging.MessageID, err error) {
		st.pending.Add(-1)
		st.m.fate(known, fateOf(err), err)
	})
	partitions := max(st.m.plan.partitions, 1)
	// Those that are acknowledged make room before their outcomes are told.
	most := 2 * max(st.s.profile.MaxPendingRecords/partitions, 1) * partitions
	if n := st.pending.Load(); n > int64(most) {
		st.m.violate(history.Bounds, "%s: %d records are pending, %d may be", st.s.name, n, most)
	}
}
