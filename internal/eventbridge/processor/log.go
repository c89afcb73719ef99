package processor

import (
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/target"
)

// Attempt is one entry of a subscriber's delivery log.
type Attempt struct {
	Time    time.Time     `json:"time"`
	Event   string        `json:"event"` // id
	Source  string        `json:"source"`
	Type    string        `json:"type"`
	Attempt int           `json:"attempt"` // from 1
	Outcome string        `json:"outcome"` // delivered, retry, dead_letter, gone, lost (live subscribers)
	Reason  string        `json:"reason,omitempty"`
	Status  int           `json:"status,omitempty"` // of HTTP
	Latency time.Duration `json:"latency_ns"`
	Error   string        `json:"error,omitempty"` // at most 256 bytes
	Next    time.Time     `json:"next,omitzero"`   // of the next attempt
	Batch   int           `json:"batch,omitempty"` // events in the batch
}

const errorBytes = 256

// attempts keeps the latest attempts.
type attempts struct {
	mu   sync.Mutex
	list []Attempt // a ring buffer
	next int
	most int
}

func (a *attempts) add(one Attempt) {
	if a.most == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) < a.most {
		a.list = append(a.list, one)
		return
	}
	a.list[a.next] = one
	a.next = (a.next + 1) % a.most
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

// errorText returns the error of a result, cut to errorBytes.
func errorText(r target.Result) string {
	if r.Err == nil {
		return ""
	}
	text := r.Err.Error()
	if len(text) > errorBytes {
		text = strings.ToValidUTF8(text[:errorBytes], "")
	}
	return text
}
