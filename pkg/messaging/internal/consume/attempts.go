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
	known atomic.Int64 // size of of

	mu    sync.Mutex
	of    map[messagePlace]failedAttempt
	order []noted // oldest first; some may be gone from of
	notes uint64
}

// messagePlace is where a message stands.
type messagePlace struct {
	topic string
	at    record.Place
}

// noted is a place with the number of its note.
type noted struct {
	at     messagePlace
	number uint64
}

type failedAttempt struct {
	number uint64
	next   int // attempt
	first  time.Time
	due    time.Time
}

// maxFailedAttempts bounds what is remembered: the oldest is forgotten, for messages may have gone
// to another consumer.
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
	if f.of == nil {
		f.of = make(map[messagePlace]failedAttempt)
	}
	at := placeOf(d)
	f.notes++
	f.order = append(f.order, noted{at, f.notes})
	f.of[at] = failedAttempt{f.notes, d.Attempt, d.FirstFailed, d.Due}
	for len(f.of) > maxFailedAttempts || len(f.order) > 2*maxFailedAttempts {
		oldest := f.order[0]
		f.order = f.order[1:]
		if f.of[oldest.at].number == oldest.number {
			delete(f.of, oldest.at)
		}
	}
	f.known.Store(int64(len(f.of)))
}

// restore gives a delivery what is remembered of its message, and reports whether that is anything.
func (f *failedAttempts) restore(d *task) bool {
	if f.known.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at := placeOf(d)
	was, known := f.of[at]
	if !known {
		return false
	}
	delete(f.of, at)
	f.known.Store(int64(len(f.of)))
	if len(f.of) == 0 {
		f.order = nil
	}
	d.Attempt, d.FirstFailed, d.Due = max(d.Attempt, was.next), was.first, was.due
	return true
}
