package consume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

var errDrained = errors.New("drained")

// Drain subscribes, calls h for the messages that the topics hold at that moment,
// and returns the number of messages that h returned nil for. Messages published
// meanwhile are left for later. It ends once every partition has delivered, and
// handlers have finished, all of them; or once partitions have delivered nothing
// for DrainIdle while no handler was running and no message was held for a retry:
// the rest was acknowledged before, another consumer has it, or it waits on the
// retry topic.
//
// When ctx ends first, the error is ctx's. Otherwise errors and guarantees are
// those of [Consumer.Run].
func (c *Consumer) Drain(ctx context.Context, h Handler) (n int, err error) {
	r, err := c.begin(h, false)
	if err != nil {
		return 0, err
	}
	defer c.end()
	r.drain = newDrain(r)
	err = r.do(ctx)
	if err == nil && !errors.Is(context.Cause(r.stop), errDrained) {
		err = ctx.Err()
	}
	return int(r.handled.Load()), err
}

// drain knows up to where each partition is to be consumed.
type drain struct {
	r *run

	mu      sync.Mutex
	known   map[source]struct{} // whose backlog is known
	unknown map[source]struct{} // without a session, or whose backlog is not known
	targets map[string]*target  // by partition's topic
	active  time.Time           // of the latest sign of life
}

type target struct {
	src                 source
	last                record.Place
	delivered, finished bool // up to last: taken over, handed to the scheduler
}

func newDrain(r *run) *drain {
	d := &drain{
		r:     r,
		known: make(map[source]struct{}), unknown: make(map[source]struct{}), targets: make(map[string]*target),
	}
	for _, src := range r.cfg.sources() {
		d.unknown[src] = struct{}{}
	}
	return d
}

// begin asks for the end of each partition's backlog, once per source.
func (d *drain) begin(s *session) error {
	d.mu.Lock()
	_, known := d.known[s.src]
	if known {
		delete(d.unknown, s.src)
	}
	d.active = time.Now()
	d.mu.Unlock()
	if known {
		return nil
	}
	var ids []pulsar.TopicMessageID
	err := errors.New("no answer")
	if !clientquirks.Within(d.r.stop, func() { ids, err = s.raw.GetLastMessageIDs() }) {
		return context.Cause(d.r.stop)
	}
	if err != nil {
		return err
	}
	s.arrivals.connections.Asked(len(ids))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[s.src] = struct{}{}
	delete(d.unknown, s.src)
	d.active = time.Now()
	for _, id := range ids {
		if id.EntryID() >= 0 { // the topic holds a message
			d.targets[id.Topic()] = &target{src: s.src, last: record.PlaceOf(id)}
		}
	}
	return nil
}

// wants reports whether m belongs to the backlog.
func (d *drain) wants(m pulsar.Message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.targets[m.Topic()]
	if t == nil {
		return false
	}
	d.active = time.Now()
	at := record.PlaceOf(m.ID())
	if !at.Less(t.last) {
		t.delivered = true
	}
	return !t.last.Less(at) || at.Ledger == t.last.Ledger && at.Entry == t.last.Entry
}

// pushed notes that the scheduler has the messages taken from src.
func (d *drain) pushed(src source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.targets {
		if t.src == src {
			t.finished = t.delivered
		}
	}
}

// restart is called when a session has ended: the next delivers unhandled messages again.
func (d *drain) restart(src source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unknown[src] = struct{}{}
	for _, t := range d.targets {
		if t.src == src {
			t.delivered, t.finished = false, false
		}
	}
}

// watch stops the run when the backlog is consumed.
func (d *drain) watch() {
	t := time.NewTicker(min(max(d.r.cfg.DrainIdle/20, time.Millisecond), 50*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-d.r.stop.Done():
			return
		case now := <-t.C:
			if d.over(now) {
				d.r.halt(errDrained)
				return
			}
		}
	}
}

func (d *drain) over(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := true
	for _, t := range d.targets {
		all = all && t.finished
	}
	// Read after the targets: messages that the targets count as finished are counted here.
	if count, _, _ := d.r.sched.Load(); count > 0 {
		d.active = now
		return false
	}
	if d.r.anySessionOver() { // what waited is dropped, and delivered again
		d.active = now
		return false
	}
	return len(d.unknown) == 0 && (all || now.Sub(d.active) >= d.r.cfg.DrainIdle)
}
