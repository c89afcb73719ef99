package consume

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// failedAttempts remembers, by message, the failed attempts of deliveries that a session's end took
// along, so that their next delivery neither forgets the delay nor begins with attempt 1. The zero
// failedAttempts is empty. It is safe for concurrent use.
type failedAttempts struct {
	known atomic.Int64 // size of both maps

	mu     sync.Mutex
	of     map[messagePlace]failedAttempt // the latest, half of maxFailedAttempts at most
	former map[messagePlace]failedAttempt // what of was before
}

// messagePlace is where a message stands.
type messagePlace struct {
	topic string
	at    record.Place
}

type failedAttempt struct {
	next  int // attempt
	first time.Time
	due   time.Time
}

// maxFailedAttempts bounds the remembered messages: nobody asks for those that have gone to another
// consumer. The oldest half is forgotten.
const maxFailedAttempts = 16 << 10

func placeOf(d *task) messagePlace {
	return messagePlace{d.entry.partition.topic, d.at}
}

// note remembers d's failed attempts, if there were any.
func (f *failedAttempts) note(d *task) {
	if d.FirstFailed.IsZero() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil || len(f.of) >= maxFailedAttempts/2 {
		f.of, f.former = make(map[messagePlace]failedAttempt), f.of
	}
	f.of[placeOf(d)] = failedAttempt{d.Attempt, d.FirstFailed, d.Due}
	f.known.Store(int64(len(f.of) + len(f.former)))
}

// restore sets a delivery's failed attempts, and reports whether any are remembered.
func (f *failedAttempts) restore(d *task) bool {
	if f.known.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at := placeOf(d)
	was, known := f.of[at]
	if !known {
		was, known = f.former[at]
	}
	if !known {
		return false
	}
	delete(f.of, at)
	delete(f.former, at)
	f.known.Store(int64(len(f.of) + len(f.former)))
	d.Attempt, d.FirstFailed, d.Due = max(d.Attempt, was.next), was.first, was.due
	return true
}
