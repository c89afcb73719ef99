package delivery

import (
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Attempt is one entry of a subscriber's delivery log.
type Attempt struct {
	Time    time.Time     `json:"time"`
	Event   string        `json:"event"` // id, cut to maxText like all texts but Response
	Source  string        `json:"source"`
	Type    string        `json:"type"`
	Attempt int           `json:"attempt"` // from 1
	Outcome string        `json:"outcome"` // delivered, retry, dead_letter, gone
	Reason  string        `json:"reason,omitempty"`
	Status  int           `json:"status,omitempty"` // of HTTP
	Latency time.Duration `json:"latency_ns"`
	Error   string        `json:"error,omitempty"`
	// Response is that of target.Result.
	Response string    `json:"response,omitempty"`
	Next     time.Time `json:"next,omitzero"`   // of the next attempt
	Batch    int       `json:"batch,omitempty"` // events in the batch
}

// maxText bounds the texts of an entry, except for Response, in bytes.
const maxText = 256

// attempts keeps the latest attempts.
type attempts struct {
	mu   sync.Mutex
	list []Attempt // a ring buffer
	next int
}

func (a *attempts) add(one Attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) < logAttempts {
		a.list = append(a.list, one)
		return
	}
	a.list[a.next] = one
	a.next = (a.next + 1) % logAttempts
}

// all returns the attempts, the latest first.
func (a *attempts) all() []Attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Attempt, 0, len(a.list))
	for i := range a.list {
		out = append(out, a.list[(a.next+len(a.list)-1-i)%len(a.list)])
	}
	return out
}

// newAttempt makes an entry about an attempt that ends now with result r. It copies texts: a part
// of an event would keep the whole event in memory.
func newAttempt(attempt int, e event.Event, r target.Result) Attempt {
	short := func(text string) string { return strings.Clone(truncate.Text(text, maxText)) }
	a := Attempt{
		Time: time.Now(), Event: short(e.ID), Source: short(e.Source), Type: short(e.Type),
		Attempt: attempt, Outcome: r.Verdict.String(), Reason: r.Reason, Status: r.Status, Latency: r.Latency, Response: r.Response,
	}
	if r.Err != nil {
		a.Error = short(r.Err.Error())
	}
	return a
}
