package outbox

import (
	"context"
	"slices"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// Bounds of what is read ahead of the one being stored.
const (
	aheadCount = 8 * message.PackEntries
	aheadBytes = 4 << 20
)

// queue holds what has been read of the stream and is not stored yet. One goroutine puts, one takes.
type queue struct {
	mu      sync.Mutex
	entries []message.Entry
	bytes   int
	marks   []mark        // of what is held and was published
	number  int64         // of the effect that was published last and heard; -1: none
	starved bool          // what is held is the beginning of a transaction: more must be read, whatever the bounds
	filled  chan struct{} // has one element when there may be something to take
	emptied chan struct{} // has one element when there may be room
	hungry  chan struct{} // has one element when take waits for more
}

// mark is the number under which an effect was published.
type mark struct {
	id     message.ID
	number int64
}

func newQueue() *queue {
	return &queue{number: -1, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1), hungry: make(chan struct{}, 1)}
}

func sizeOf(entries []message.Entry) (bytes int) {
	for i := range entries {
		bytes += entries[i].Size()
	}
	return bytes
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds entries, and then waits until less than the bounds is held.
func (q *queue) put(ctx context.Context, entries []message.Entry) error {
	q.mu.Lock()
	q.entries = append(q.entries, entries...)
	q.bytes += sizeOf(entries)
	q.mu.Unlock()
	signal(q.filled)
	for {
		q.mu.Lock()
		full := !q.starved && (len(q.entries) >= aheadCount || q.bytes >= aheadBytes)
		q.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-q.emptied:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take waits for entries and returns those of the next message: as many as the bounds allow, whole transactions only. With one it
// returns no more than the first of them, or the first transaction. Once ctx has ended it returns what is held, and then an error.
func (q *queue) take(ctx context.Context, one bool) ([]message.Entry, error) {
	for ended := false; ; {
		q.mu.Lock()
		n := message.Cut(q.entries, one)
		q.starved = n == 0
		if n > 0 {
			taken := q.entries[:n:n]
			q.entries = q.entries[n:]
			if len(q.entries) == 0 {
				q.entries = nil
			}
			q.bytes -= sizeOf(taken)
			q.mu.Unlock()
			signal(q.emptied)
			return taken, nil
		}
		q.mu.Unlock()
		if ended {
			return nil, context.Cause(ctx)
		}
		signal(q.emptied)
		signal(q.hungry)
		select {
		case <-q.filled:
		case <-ctx.Done():
			ended = true
		}
	}
}

// add adds entries, whatever is held.
func (q *queue) add(entries []message.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.append(entries)
}

// addPublished adds entries, and keeps the number under which the entry id was published. It is one step: what is held may be stored at once, and then the
// number tells Redis how far that is.
func (q *queue) addPublished(entries []message.Entry, id message.ID, number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.marks, q.number = append(q.marks, mark{id, number}), number
	q.append(entries)
}

func (q *queue) append(entries []message.Entry) {
	q.entries = append(q.entries, entries...)
	q.bytes += sizeOf(entries)
	signal(q.filled)
}

// putBack has entries that were taken be the first again.
func (q *queue) putBack(entries []message.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = append(slices.Clone(entries), q.entries...)
	q.bytes += sizeOf(entries)
}

// drop removes the entries up to id, and returns how many they are, and whether the last of them is that of id.
func (q *queue) drop(id message.ID) (n int, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(q.entries) && q.entries[n].ID.Compare(id) <= 0 {
		q.bytes -= q.entries[n].Size()
		last = q.entries[n].ID == id
		n++
	}
	q.entries = q.entries[n:]
	return n, last
}

// size returns what is held, in bytes.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// ample reports whether as much is held as a message takes.
func (q *queue) ample() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) >= message.PackEntries || q.bytes >= message.PackBytes
}

// last returns the id of the last entry that is held; zero for none.
func (q *queue) last() message.ID {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 {
		return message.ID{}
	}
	return q.entries[len(q.entries)-1].ID
}

// heard returns the number of the last effect that was heard, or that the topic has: what follows must have the next one.
func (q *queue) heard(u lane.Unsent) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u.Published < q.number { // they are counted anew: Redis was restarted
		q.marks, q.number = nil, -1
	}
	q.number = max(q.number, u.Stored)
	return q.number
}

// published returns the number of the last effect that was published and is not behind id, -1 for none, and forgets it and those before it.
func (q *queue) published(id message.ID) (number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, number := 0, int64(-1)
	for n < len(q.marks) && q.marks[n].id.Compare(id) <= 0 {
		number = q.marks[n].number
		n++
	}
	if q.marks = q.marks[n:]; len(q.marks) == 0 {
		q.marks = nil
	}
	return number
}

// count returns how many entries are held.
func (q *queue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// first returns the entries of the next message behind id, and leaves them there; with one no more than the first of them, or the first transaction.
func (q *queue) first(id message.ID, one bool) []message.Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.entries) && q.entries[n].ID.Compare(id) <= 0 {
		n++
	}
	rest := q.entries[n:]
	return slices.Clone(rest[:message.Cut(rest, one)])
}
