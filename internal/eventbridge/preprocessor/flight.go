package preprocessor

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Properties of messages on a bus' topic.
const (
	hopsProperty   = "hops"
	tenantProperty = "tenant"
)

// flight is the events of one request on their way to the broker. It outlives its request: what the publisher has taken is stored or not, whether its
// sender still waits or not.
type flight struct {
	p       *Preprocessor
	outlet  *outlet
	tenant  *tenant
	hold    *door.Hold
	records []messaging.Record
	slots   []slot
	left    atomic.Int64
	done    chan struct{} // closed when every outcome is known
	one     struct {      // records and slots of a single event
		records [1]messaging.Record
		slots   [1]slot
	}
}

// slot is the outcome of one event.
type slot struct {
	flight *flight
	state  atomic.Uint32
}

// The states of a slot.
const (
	pending  = iota
	stored   // the broker has acknowledged it
	unstored // it may be stored or not
	oversize // the broker does not take it
)

// eventOverhead is what an event takes on its way besides its JSON and its attributes' texts.
const eventOverhead = 1 << 10

// newFlight is of those entries that are events, which are as many as events says.
func newFlight(p *Preprocessor, l *outlet, from *tenant, entries []event.Entry, events, hops int) *flight {
	f := &flight{p: p, outlet: l, tenant: from, done: make(chan struct{})}
	if f.records, f.slots = f.one.records[:], f.one.slots[:]; events > 1 {
		f.records, f.slots = make([]messaging.Record, events), make([]slot, events)
	}
	f.left.Store(int64(events))
	properties := propertiesOf(from, hops)
	next := 0
	for i := range entries {
		if entries[i].Err != nil {
			continue
		}
		e := &entries[i].Event
		f.slots[next].flight = f
		f.records[next] = messaging.Record{Key: keyOf(e), Payload: e.JSON, Properties: properties}
		if e.Time.UnixMilli() > 0 { // before 1970 a message has none
			f.records[next].EventTime = e.Time
		}
		next++
	}
	return f
}

// keyOf is the message's key: copies of one event, and events of one partitionkey, meet in one partition.
func keyOf(e *event.Event) string {
	if e.PartitionKey != "" {
		return e.PartitionKey
	}
	return e.Source + "\n" + e.ID
}

// propertiesOf are those of all messages of a request, which share them; nil for none.
func propertiesOf(from *tenant, hops int) map[string]string {
	if hops == 0 {
		if from == nil {
			return nil
		}
		return from.properties
	}
	properties := map[string]string{hopsProperty: strconv.Itoa(hops)}
	if from != nil {
		properties[tenantProperty] = from.name
	}
	return properties
}

// start hands all events to the publisher. It returns when they are in its queue, or ctx has ended.
func (f *flight) start(ctx context.Context) {
	for i := range f.records {
		f.outlet.publisher.PublishAsync(ctx, &f.records[i], f.slots[i].settle)
	}
}

// wait waits for the outcomes, at most until ctx ends.
func (f *flight) wait(ctx *patience) {
	timer, kept := f.p.timers.Get().(*time.Timer)
	if left := time.Until(ctx.until); kept {
		timer.Reset(left)
	} else {
		timer = time.NewTimer(left)
	}
	select {
	case <-f.done:
	case <-timer.C:
		f.outlet.noteLate()
	case <-ctx.Context.Done():
	}
	timer.Stop()
	f.p.timers.Put(timer)
}

// patience is a request's context that ends at a time, too. Most requests wait for acknowledgements only, see wait: a timer is taken when somebody waits
// for Done.
type patience struct {
	context.Context // the request's

	until time.Time

	mu     sync.Mutex
	timed  context.Context // nil until somebody waits
	cancel context.CancelFunc
}

// Deadline is that of the request's wait.
func (p *patience) Deadline() (time.Time, bool) { return p.until, true }

// Done takes a timer.
func (p *patience) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timed == nil {
		p.timed, p.cancel = context.WithDeadline(p.Context, p.until)
	}
	return p.timed.Done()
}

// Err is not nil once the context has ended.
func (p *patience) Err() error {
	if err := p.Context.Err(); err != nil {
		return err
	}
	if time.Now().Before(p.until) {
		return nil
	}
	return context.DeadlineExceeded
}

// end gives the timer back.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancel != nil {
		p.cancel()
	}
}

// settle is called with the outcome of an event, in the publisher's goroutine.
func (s *slot) settle(_ messaging.MessageID, err error) {
	state := uint32(stored)
	switch {
	case errors.Is(err, messaging.ErrTooLarge):
		state = oversize
	case err != nil:
		state = unstored
		s.flight.p.outlets.noteOutcome(s.flight.outlet, err)
	}
	s.state.Store(state)
	if s.flight.left.Add(-1) == 0 {
		s.flight.finish()
	}
}

// finish settles what the request was charged.
func (f *flight) finish() {
	events, bytes, written := 0, 0, 0
	for i := range f.slots {
		size := len(f.records[i].Payload)
		if f.slots[i].state.Load() == stored {
			written += size
		} else {
			events, bytes = events+1, bytes+size
		}
	}
	f.tenant.give(events, bytes)
	m := f.p.metrics
	m.events.accepted.Add(float64(len(f.slots) - events))
	m.events.unstored.Add(float64(events))
	m.bytes.published.Add(float64(written))
	f.hold.Release()
	close(f.done)
}

// refusal says what an event's outcome means for its sender, nil for a stored one.
func (s *slot) refusal(timeout time.Duration) *door.Refusal {
	switch s.state.Load() {
	case stored:
		return nil
	case oversize:
		return &door.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "broker_size", Text: "the event is larger than the broker accepts"}
	case unstored:
		return &door.Refusal{Status: http.StatusServiceUnavailable, Reason: "publish", RetryAfter: door.RetryAway, Text: "the event could not be stored, or only perhaps: send it again"}
	}
	return &door.Refusal{Status: http.StatusServiceUnavailable, Reason: "timeout", RetryAfter: door.RetryAway, Text: "Pulsar did not acknowledge the event within " + timeout.String() + ": send it again"}
}
