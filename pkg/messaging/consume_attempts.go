package messaging

import (
	"sync"
	"time"
)

// failedAttempts remembers, by message, the failed attempts of deliveries that a session's end took
// along, so that their next delivery neither forgets the delay nor begins with attempt 1. The zero
// failedAttempts is empty. It is safe for concurrent use.
type failedAttempts struct {
	mu    sync.Mutex
	of    map[messagePlace]failedAttempt
	order []messagePlace // oldest first; some may be gone from of
}

// messagePlace is where a message stands.
type messagePlace struct {
	topic string
	at    position
}

type failedAttempt struct {
	next  int // attempt
	first time.Time
	due   time.Time
}

// maxFailedAttempts bounds what is remembered: the oldest is forgotten, for messages may have gone
// to another consumer.
const maxFailedAttempts = 16 << 10

func placeOf(d *task) messagePlace {
	return messagePlace{d.entry.partition.topic, positionOf(d.rawID)}
}

// note remembers d's failed attempts, if there were any.
func (f *failedAttempts) note(d *task) {
	if d.FirstFailed.IsZero() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = make(map[messagePlace]failedAttempt)
	}
	at := placeOf(d)
	if _, known := f.of[at]; !known {
		f.order = append(f.order, at)
	}
	f.of[at] = failedAttempt{d.Attempt, d.FirstFailed, d.Due}
	for len(f.of) > maxFailedAttempts || len(f.order) > 2*maxFailedAttempts {
		delete(f.of, f.order[0])
		f.order = f.order[1:]
	}
}

// restore gives a new delivery of a message what is remembered of it.
func (f *failedAttempts) restore(d *task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.of) == 0 {
		return
	}
	at := placeOf(d)
	if was, known := f.of[at]; known {
		delete(f.of, at)
		d.Attempt, d.FirstFailed, d.Due = was.next, was.first, was.due
	}
	if len(f.of) == 0 {
		f.order = nil
	}
}
