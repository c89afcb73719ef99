package eventbridge

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// ledger is what was sent. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	events   map[string]event // by id: those that were answered 202
	order    []string         // ids, as they were made
	posts    map[string][]string
	answers  map[int]int // statuses of requests
	repeated int         // events that were sent again
}

func newLedger() *ledger {
	return &ledger{events: map[string]event{}, posts: map[string][]string{}, answers: map[int]int{}}
}

// accepted are the events that were answered 202.
func (l *ledger) accepted() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]event, 0, len(l.events))
	for _, id := range l.order {
		if e, ok := l.events[id]; ok {
			out = append(out, e)
		}
	}
	return out
}

// posted notes a request with an event.
func (l *ledger) posted(e event, began time.Time, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.posts[e.id]) == 0 {
		l.order = append(l.order, e.id)
	} else {
		l.repeated++
	}
	l.posts[e.id] = append(l.posts[e.id], fmt.Sprintf("%s-%s:%d", began.Format("15:04:05.000"), time.Now().Format("15:04:05.000"), status))
	if status == http.StatusAccepted {
		l.events[e.id] = e
	}
}

func (l *ledger) answered(status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[status]++
}

func (l *ledger) postsOf(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.posts[id]
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d events, %d sent again, requests by their answers: %v", len(l.events), l.repeated, l.answers)
}

const (
	// sendersOfMany send to the bus with partitions, one to the other.
	sendersOfMany   = 3
	groupsOfASender = 5
	// sendEvery is the time between two requests of a sender.
	sendEvery = 60 * time.Millisecond
	// again is how far back events are sent once more although they were accepted. The window of
	// duplicates is longer by far.
	again = 60
)

// A sender sends events of groups of its own, one request after the other, so that each group has
// an order.
type sender struct {
	w      *fixture
	bus    string
	r      *rand.Rand
	groups []string
	last   map[string]int
	past   []event // the latest that were accepted
	at     int     // the preprocessor that answered last
	url    string
}

func (w *fixture) sender(i int) *sender {
	s := &sender{w: w, bus: busMany, r: rand.New(rand.NewPCG(w.seed, uint64(i)+1)), last: map[string]int{}}
	if i == sendersOfMany {
		s.bus = busOne
	}
	for g := range groupsOfASender {
		s.groups = append(s.groups, fmt.Sprintf("s%dg%d", i, g))
	}
	return s
}

// send starts the senders. They end with stop, each once all that it has made is accepted.
func (w *fixture) send() {
	for i := range sendersOfMany + 1 {
		s := w.sender(i)
		w.sending.Go(func() {
			tick := time.NewTicker(sendEvery)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-w.enough:
					return
				}
				if !s.once() {
					return
				}
			}
		})
	}
}

// once makes events, one or one of each group, and sends them until all are accepted.
func (s *sender) once() bool {
	groups := []string{s.groups[s.r.IntN(len(s.groups))]}
	if s.r.IntN(5) == 0 {
		groups = s.groups
	}
	var events []event
	for _, g := range groups {
		s.last[g]++
		kind := []string{placed, paid, low}[s.r.IntN(3)]
		events = append(events, event{s.bus, fmt.Sprintf("%s-%d", g, s.last[g]), kind, g, s.last[g], s.w.phase.Load()})
	}
	if !s.insist(events) {
		return false
	}
	if s.past = append(s.past, events...); len(s.past) > again {
		s.past = s.past[len(s.past)-again:]
	}
	if s.r.IntN(10) == 0 { // a sender that does not know that it was accepted
		return s.insist([]event{s.past[s.r.IntN(len(s.past))]})
	}
	return true
}

// insist sends events again until each was accepted.
func (s *sender) insist(events []event) bool {
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if events = s.post(events); len(events) == 0 {
			return true
		}
		if time.Now().After(deadline) {
			s.w.t.Errorf("%v is not accepted", events)
			return false
		}
	}
}

// post sends events in one request and returns those that were not accepted.
func (s *sender) post(events []event) (rest []event) {
	kind, texts := "application/cloudevents+json", make([]json.RawMessage, 0, len(events))
	for _, e := range events {
		texts = append(texts, fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/whole","type":%q,"partitionkey":%q,"data":{"n":%d,"odd":%t}}`,
			e.id, e.kind, e.group, e.n, e.n%2 == 1))
	}
	body := []byte(texts[0])
	if len(texts) > 1 {
		kind = "application/cloudevents-batch+json"
		body = encode(s.w.t, texts)
	}
	if s.url == "" {
		all := s.w.roles["preprocessor"]
		s.at = (s.at + 1) % len(all)
		s.url = "http://" + all[s.at].AddressNow("http")
	}
	began := time.Now()
	status, answer := s.w.asker.ask(http.MethodPost, s.url+"/v1/buses/"+s.bus+"/events", kind, body)
	s.w.ledger.answered(status)
	if status != http.StatusAccepted {
		s.url = "" // perhaps another one takes it
	}
	var results struct {
		Results []struct {
			Status int `json:"status"`
		} `json:"results"`
	}
	if status == http.StatusServiceUnavailable && len(events) > 1 {
		_ = json.Unmarshal(answer, &results) // without results none is stored for sure
	}
	for i, e := range events {
		one := status
		if i < len(results.Results) {
			one = results.Results[i].Status
		}
		s.w.ledger.posted(e, began, one)
		switch one {
		case http.StatusAccepted:
		case 0, http.StatusServiceUnavailable:
			rest = append(rest, e)
		default:
			s.w.t.Errorf("%s: answered %d: %s", e.id, one, answer)
		}
	}
	return rest
}
