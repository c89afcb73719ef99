package ingest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// flight is the events of one request that are in flight to the broker. It may outlive its request:
// the publisher stores its events even if the sender has closed the connection.
type flight struct {
	metrics   *metrics
	publisher *busPublisher
	tenant    *tenant
	hold      *admission.Hold
	records   []messaging.Record
	slots     []slot
	left      atomic.Int64
	done      chan struct{} // closed when every outcome is known
	one       struct {      // records and slots of a single event
		records [1]messaging.Record
		slots   [1]slot
	}
}

// slot is the outcome of one event.
type slot struct {
	flight  *flight
	outcome atomic.Pointer[refusal.Error] // nil: not known yet
}

// The outcomes of an event.
var (
	errStored   = &refusal.Error{Status: http.StatusAccepted} // not an error: the broker has acknowledged the event
	errOversize = &refusal.Error{Status: http.StatusRequestEntityTooLarge, Reason: "broker_size", Text: "the event is larger than the broker accepts"}
	errUnstored = &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "publish", RetryAfter: refusal.RetryUnavailable, Text: "the event was not stored, or it is not known whether it was: send it again"}
)

// eventOverhead is what an event takes in flight, in addition to its JSON and its attributes'
// texts.
const eventOverhead = 1 << 10

// newFlight makes a flight of those entries that are events. events is their number.
func (q *request) newFlight(m *metrics, p *busPublisher, entries []event.Entry, events int) *flight {
	f := &flight{metrics: m, publisher: p, tenant: q.from.tenant, done: make(chan struct{})}
	if f.records, f.slots = f.one.records[:], f.one.slots[:]; events > 1 {
		f.records, f.slots = make([]messaging.Record, events), make([]slot, events)
	}
	f.left.Store(int64(events))
	properties := propertiesOf(q.from.tenant, q.hops)
	next := 0
	for i := range entries {
		if entries[i].Err != nil {
			continue
		}
		e := &entries[i].Event
		f.slots[next].flight = f
		f.records[next] = messaging.Record{Key: keyOf(e), Payload: e.JSON, Properties: properties}
		if e.Time.UnixMilli() > 0 { // a message cannot have a time before 1970
			f.records[next].EventTime = e.Time
		}
		next++
	}
	return f
}

// keyOf returns the message's key. Copies of one event, and events of one partitionkey, go to one
// partition.
func keyOf(e *event.Event) string {
	if e.PartitionKey != "" {
		return e.PartitionKey
	}
	return e.Source + "\n" + e.ID
}

// propertiesOf returns the properties that all messages of a request share; nil if there are none.
func propertiesOf(from *tenant, hops int) map[string]string {
	if hops == 0 {
		if from == nil {
			return nil
		}
		return from.properties
	}
	properties := map[string]string{model.PropertyHops: strconv.Itoa(hops)}
	if from != nil {
		properties[model.PropertyTenant] = from.name
	}
	return properties
}

// start hands all events to the publisher. It returns when they are in its queue, or the request has
// waited long enough.
func (f *flight) start(ctx context.Context) {
	for i := range f.records {
		f.publisher.PublishAsync(ctx, &f.records[i], f.slots[i].complete)
	}
}

// deadlineContext is a request's context with a deadline. Most requests wait only for
// acknowledgements, see Handler.await. So it starts a timer only when Done is called:
// with context.WithTimeout a request that brings one event takes a seventh more (BenchmarkHandler).
type deadlineContext struct {
	context.Context // the request's

	until time.Time

	mu     sync.Mutex
	timed  context.Context // nil until Done is called
	cancel context.CancelFunc
}

// Deadline returns until when the request waits.
func (c *deadlineContext) Deadline() (time.Time, bool) { return c.until, true }

// Done starts a timer.
func (c *deadlineContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(c.Context, c.until)
	}
	return c.timed.Done()
}

// Err is not nil once the context has ended.
func (c *deadlineContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if time.Now().Before(c.until) {
		return nil
	}
	return context.DeadlineExceeded
}

// end stops the timer.
func (c *deadlineContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// complete records the outcome of an event. The publisher's goroutine calls it.
func (s *slot) complete(_ messaging.MessageID, err error) {
	outcome := errStored
	switch {
	case errors.Is(err, messaging.ErrTooLarge):
		outcome = errOversize
	case err != nil:
		outcome = errUnstored
		s.flight.publisher.failIfClosed(err)
	}
	s.outcome.Store(outcome)
	if s.flight.left.Add(-1) == 0 {
		s.flight.finish()
	}
}

// finish releases the bytes in flight, and gives back the quota for events that were not stored.
func (f *flight) finish() {
	events, bytes, written := 0, 0, 0
	for i := range f.slots {
		size := len(f.records[i].Payload)
		if f.slots[i].outcome.Load() == errStored {
			written += size
		} else {
			events, bytes = events+1, bytes+size
		}
	}
	f.tenant.refund(events, bytes)
	m := f.metrics
	m.events.accepted.Add(float64(len(f.slots) - events))
	m.events.unstored.Add(float64(events))
	m.bytes.published.Add(float64(written))
	f.hold.Release()
	close(f.done)
}

// refusal returns the refusal that follows from an event's outcome, nil for a stored event.
func (s *slot) refusal(timeout time.Duration) *refusal.Error {
	switch outcome := s.outcome.Load(); outcome {
	case errStored:
		return nil
	case nil:
		return &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "timeout", RetryAfter: refusal.RetryUnavailable, Text: "Pulsar did not acknowledge the event within " + timeout.String() + ": send it again"}
	default:
		return outcome
	}
}
