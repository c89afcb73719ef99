package zones

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// eventsEvery is the time between two events.
const eventsEvery = 50 * time.Millisecond

const (
	eventsFlow    = "Eventbridge"
	busPartitions = 2
)

// events are sent to Eventbridge, which delivers them to a subscriber's server.
type events struct {
	url     string // of the subscriber
	sending sync.Mutex

	mu   sync.Mutex
	sent int
	all  map[string]*event
	held chan struct{} // nil, or the subscriber answers nothing until it is closed
}

// An event that was sent.
type event struct {
	accepted, counted  bool // counted: in an earlier table
	delivered, refused int
	mayRepeat          int  // how often it may be delivered once more
	mayBeLost          bool // the zone that accepted it was lost, and its next one does not store it
}

func newEvents(t testing.TB) *events {
	t.Helper()
	e := &events{all: map[string]*event{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

// ServeHTTP counts an event. What comes while the subscriber answers nothing is refused in the end.
func (e *events) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var body struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		panic(http.ErrAbortHandler) // its process was killed
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	held, of := e.held, e.of(body.ID)
	if held == nil {
		of.delivered++
		return
	}
	of.refused++
	e.mu.Unlock()
	select {
	case <-held:
	case <-r.Context().Done():
	}
	rw.WriteHeader(http.StatusServiceUnavailable)
	e.mu.Lock()
}

func (e *events) of(id string) *event {
	if e.all[id] == nil {
		e.all[id] = &event{}
	}
	return e.all[id]
}

// hold has the subscriber answer nothing until release.
func (e *events) hold() (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = make(chan struct{})
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		close(e.held)
		e.held = nil
	}
}

// define makes the bus and the subscriber.
func (e *events) define(w *fixture) {
	w.t.Helper()
	base := "http://" + w.eventbridge.Load().Address("http") + "/v1/buses/shop"
	w.await("the registry takes changes", func() bool {
		return ask(w.t.Context(), http.MethodPut, base, "application/json", fmt.Sprintf(`{"partitions": %d}`, busPartitions))/100 == 2
	})
	subscriber := fmt.Sprintf(`{"rules": [{"name": "all", "pattern": {"type": [{"prefix": "order."}]}}], "target": {"webhook": {"url": %q}},
		"delivery": {"timeout": "5m", "retry": {"schedule": ["200ms"], "max_attempts": 100}}}`, e.url)
	require.Equal(w.t, 2, ask(w.t.Context(), http.MethodPut, base+"/subscribers/all", "application/json", subscriber)/100)
	// Events count from when the engine matches by the new rules.
	w.await("the subscriber is active", func() bool { return strings.Contains(get(base+"/subscribers/all/status"), `"active":true`) })
}

// send sends events, each until it is accepted.
func (e *events) send(w *fixture) {
	w.tick(eventsEvery, func(int) bool {
		e.sending.Lock()
		defer e.sending.Unlock()
		e.mu.Lock()
		id := fmt.Sprint("event-", e.sent)
		of := e.of(id)
		e.mu.Unlock()
		text := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/zones","type":"order.placed","data":{}}`, id)
		url := "http://" + w.eventbridge.Load().AddressNow("http") + "/v1/buses/shop/events"
		if ask(context.Background(), http.MethodPost, url, "application/cloudevents+json", text) == http.StatusAccepted {
			e.mu.Lock()
			of.accepted = true
			e.sent++
			e.mu.Unlock()
		}
		return true
	})
}

// stored are the events that a zone's topic of the bus holds.
func (e *events) stored(w *fixture, z *zone) map[string]bool {
	w.t.Helper()
	ids := map[string]bool{}
	for i := range busPartitions { // by their names: a reader must not make the topic
		topic := fmt.Sprintf("persistent://%s/eventbridge-shop-events-partition-%d", eventsNamespace, i)
		for payload := range w.read(z, topic) {
			var body struct {
				ID string `json:"id"`
			}
			require.NoError(w.t, json.Unmarshal([]byte(payload), &body))
			ids[body.ID] = true
		}
	}
	return ids
}

// awaitStored waits until a zone stores what was accepted before, and some that the subscriber, which
// answers nothing, did not get.
func (e *events) awaitStored(w *fixture, z *zone) {
	w.t.Helper()
	var before []string
	e.mu.Lock()
	for id, of := range e.all {
		if of.accepted {
			before = append(before, id)
		}
	}
	e.mu.Unlock()
	w.await("zone "+z.name+" stores events that were not delivered", func() bool {
		stored, waiting := e.stored(w, z), 0
		for _, id := range before {
			if !stored[id] {
				return false
			}
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		for id, of := range e.all {
			if of.accepted && stored[id] && of.delivered == 0 {
				waiting++
			}
		}
		return waiting >= 10
	})
}

// restarted is called when Eventbridge was restarted: the end of a process may keep back that events
// were delivered.
func (e *events) restarted() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range e.all {
		if !of.counted {
			of.mayRepeat++
		}
	}
}

// zoneIsLost is called when the zone of Eventbridge is lost. It goes to another zone, which delivers
// what is stored there. zoneIsLost returns how many of these events were not delivered before.
func (e *events) zoneIsLost(stored map[string]bool) (waiting int) {
	e.sending.Lock() // until the last answer is there
	defer e.sending.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, of := range e.all {
		of.mayBeLost = of.accepted && !stored[id]
		// That zone delivers the copy that it stores and one for each attempt that has failed, and
		// matches all events again.
		of.mayRepeat += 2 + max(0, of.refused-1)
		if of.accepted && stored[id] && of.delivered == 0 {
			waiting++
		}
	}
	return waiting
}

// undelivered counts what was accepted, and not delivered.
func (e *events) undelivered() (missing, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range e.all {
		switch {
		case !of.accepted || of.delivered > 0:
		case of.mayBeLost:
			lost++
		default:
			missing++
		}
	}
	return missing, lost
}

func (e *events) accepted() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range e.all {
		if of.accepted {
			n++
		}
	}
	return n
}

func (e *events) settle(w *fixture) {
	w.t.Helper()
	w.await("all events are delivered", func() bool {
		missing, _ := e.undelivered()
		return missing == 0
	})
}

// count makes the line of the subscriber.
func (e *events) count() line {
	n := line{flow: eventsFlow, zone: "-", acknowledged: e.accepted()}
	n.missing, n.lost = e.undelivered()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range e.all {
		if of.accepted && of.delivered > 0 {
			n.received++
			n.doubled += of.delivered - 1
			n.tooOften += max(0, of.delivered-1-of.mayRepeat)
		}
		of.counted = of.accepted
	}
	return n
}
