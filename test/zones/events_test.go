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

// events are sent to Eventbridge, which delivers them to a subscriber's server.
type events struct {
	url string // of the subscriber

	mu       sync.Mutex
	next     int
	accepted map[string]bool
	lost     map[string]bool // those that were accepted by a zone that was lost
	came     map[string]int
}

func newEvents(t testing.TB) *events {
	t.Helper()
	e := &events{accepted: map[string]bool{}, lost: map[string]bool{}, came: map[string]int{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

func (e *events) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var event struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		panic(http.ErrAbortHandler) // its process was killed
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.came[event.ID]++
}

// define makes the bus and the subscriber.
func (e *events) define(w *world) {
	w.t.Helper()
	base := "http://" + w.eventbridge.Load().Address("http") + "/v1/buses/shop"
	w.await("the registry takes changes", func() bool {
		return ask(w.t.Context(), http.MethodPut, base, "application/json", `{"partitions": 2}`)/100 == 2
	})
	subscriber := fmt.Sprintf(`{"rules": [{"name": "all", "pattern": {"type": [{"prefix": "order."}]}}], "target": {"webhook": {"url": %q}},
		"delivery": {"retry": {"schedule": ["200ms"], "max_attempts": 100}}}`, e.url)
	require.Equal(w.t, 2, ask(w.t.Context(), http.MethodPut, base+"/subscribers/all", "application/json", subscriber)/100)
	// Events count from when the engine matches by the new rules.
	w.await("the subscriber is active", func() bool { return strings.Contains(get(base+"/subscribers/all/status"), `"active":true`) })
}

// send sends events, each until it is accepted.
func (e *events) send(w *world) {
	w.tick(eventsEvery, func(int) bool {
		id := fmt.Sprint("event-", e.next)
		text := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/zones","type":"order.placed","data":{}}`, id)
		url := "http://" + w.eventbridge.Load().AddressNow("http") + "/v1/buses/shop/events"
		if ask(context.Background(), http.MethodPost, url, "application/cloudevents+json", text) == http.StatusAccepted {
			e.mu.Lock()
			e.accepted[id] = true
			e.mu.Unlock()
			e.next++
		}
		return true
	})
}

// zoneIsLost is called when the zone is lost that has accepted all so far.
func (e *events) zoneIsLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.accepted {
		e.lost[id] = e.came[id] == 0
	}
}

// undelivered counts what was accepted, and did not come.
func (e *events) undelivered() (missing, lost int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.accepted {
		switch {
		case e.came[id] > 0:
		case e.lost[id]:
			lost++
		default:
			missing++
		}
	}
	return missing, lost
}

func (e *events) settle(w *world) {
	w.t.Helper()
	w.await("all events are delivered", func() bool {
		missing, _ := e.undelivered()
		return missing == 0
	})
}

// count makes the line of the subscriber. An event may come twice: it is delivered at least once.
func (e *events) count() line {
	n := line{flow: "Eventbridge", zone: "-"}
	n.missing, n.lost = e.undelivered()
	e.mu.Lock()
	defer e.mu.Unlock()
	n.acknowledged = len(e.accepted)
	n.mayDouble = 2 * n.acknowledged // in a next zone: all copies that are stored, and all events are matched again
	for id := range e.accepted {
		if e.came[id] > 0 {
			n.received++
			n.doubled += e.came[id] - 1
		}
	}
	return n
}
