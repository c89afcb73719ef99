package eventbridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sink is the webhook of all subscribers, each at its name.
type sink struct {
	url   string
	began time.Time

	mu    sync.Mutex
	books map[string]*book
}

// book is what one subscriber was sent.
type book struct {
	of          *subscriber
	began       time.Time
	unavailable atomic.Bool // the subscriber is unavailable: connections end without an answer

	mu       sync.Mutex
	taken    []string          // ids in the order in which they were answered 2xx
	count    map[string]int    // how often each was
	attempts map[string]int    // how often each came, whatever the answer
	refused  map[string]bool   // those that were answered 4xx
	hooks    map[string]string // webhook-id of each
	failed   int               // answers 503, and none
	wrong    []string          // what must not come
}

func newSink(t testing.TB) *sink {
	t.Helper()
	s := &sink{began: time.Now(), books: map[string]*book{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *sink) add(of *subscriber) *book {
	b := &book{of: of, began: s.began, count: map[string]int{}, attempts: map[string]int{}, refused: map[string]bool{}, hooks: map[string]string{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.books[of.name] = b
	return b
}

// delivered is the body of a delivery, as it was sent or as the transformations make it.
type delivered struct {
	ID    string `json:"id"`
	Group string `json:"partitionkey"`
	Kind  string `json:"type"`
	Data  struct {
		N int `json:"n"`
	} `json:"data"`
	Made string `json:"made"`
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	b := s.books[strings.TrimPrefix(r.URL.Path, "/")]
	s.mu.Unlock()
	var d delivered
	if err := json.NewDecoder(r.Body).Decode(&d); err != nil || b == nil {
		return // cut off: its process was killed
	}
	status := b.note(d, r.Header.Get("webhook-id"))
	if status == 0 {
		panic(http.ErrAbortHandler) // ends the connection
	}
	w.WriteHeader(status)
}

// note notes an attempt and returns its answer.
func (b *book) note(d delivered, hook string) (status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts[d.ID]++
	if known, ok := b.hooks[d.ID]; hook == "" || ok && known != hook {
		b.wrong = append(b.wrong, fmt.Sprintf("%s has the webhook-id %q, and had %q", d.ID, hook, known))
	}
	b.hooks[d.ID] = hook
	e := event{bus: b.of.bus, id: d.ID, kind: d.Kind, group: d.Group, n: d.Data.N}
	if want := fmt.Sprintf("%s-%d", d.Group, d.Data.N); d.ID != want {
		b.wrong = append(b.wrong, fmt.Sprintf("%+v is not what was sent", d))
	}
	if (d.Made == "for "+d.Group) != (b.of.transform != nil) {
		b.wrong = append(b.wrong, fmt.Sprintf("%+v is not what the transformation makes", d))
	}
	switch {
	case b.unavailable.Load():
		b.failed++
		return 0
	case b.of.fails(time.Since(b.began)):
		b.failed++
		return http.StatusServiceUnavailable
	case b.of.refuses != nil && b.of.refuses(e):
		b.refused[d.ID] = true
		return http.StatusUnprocessableEntity
	}
	b.taken = append(b.taken, d.ID)
	b.count[d.ID]++
	return http.StatusNoContent
}

// distinct is how many events have come.
func (b *book) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.count) + len(b.refused)
}

// counted is how often an event has come, and whether it was refused.
func (b *book) counted(id string) (n int, refused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count[id], b.refused[id]
}

func (b *book) failures() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}
