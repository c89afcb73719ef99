package outbox

import (
	"context"
	"sync"

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
	starved bool          // what is held is the beginning of a transaction: more must be read, whatever the bounds
	filled  chan struct{} // has one element when there may be something to take
	emptied chan struct{} // has one element when there may be room
	hungry  chan struct{} // has one element when take waits for more
}

func newQueue() *queue {
	return &queue{filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1), hungry: make(chan struct{}, 1)}
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
	for i := range entries {
		q.bytes += entries[i].Size()
	}
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
// returns no more than the first of them, or the first transaction.
func (q *queue) take(ctx context.Context, one bool) ([]message.Entry, error) {
	for {
		q.mu.Lock()
		n := message.Cut(q.entries, one)
		q.starved = n == 0
		if n > 0 {
			taken := q.entries[:n:n]
			q.entries = q.entries[n:]
			if len(q.entries) == 0 {
				q.entries = nil
			}
			for i := range taken {
				q.bytes -= taken[i].Size()
			}
			q.mu.Unlock()
			signal(q.emptied)
			return taken, nil
		}
		q.mu.Unlock()
		signal(q.emptied)
		signal(q.hungry)
		select {
		case <-q.filled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
