package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Bounds of how much read reads ahead of store.
const (
	maxQueuedEntries = 8 * wire.PackEntries
	maxQueuedBytes   = 4 << 20
)

// queue holds entries that were read and are not stored yet. One goroutine adds entries, one takes
// them.
type queue struct {
	mu        sync.Mutex
	entries   []wire.Entry
	bytes     int
	needsMore bool          // the queue holds only the beginning of a transaction: put may exceed the bounds
	filled    chan struct{} // has one element when there may be entries to take
	emptied   chan struct{} // has one element when there may be room for entries
	takeWaits chan struct{} // has one element when take waits for entries
}

func newQueue() *queue {
	return &queue{filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1), takeWaits: make(chan struct{}, 1)}
}

func sizeOf(entries []wire.Entry) (bytes int) {
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

// put adds entries, and then waits until the queue is below its bounds.
func (q *queue) put(ctx context.Context, entries []wire.Entry) error {
	q.mu.Lock()
	q.entries = append(q.entries, entries...)
	q.bytes += sizeOf(entries)
	q.mu.Unlock()
	signal(q.filled)
	for {
		q.mu.Lock()
		full := !q.needsMore && (len(q.entries) >= maxQueuedEntries || q.bytes >= maxQueuedBytes)
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

// take waits for entries and returns those of the next message: as many as the bounds of a message
// allow, and never a part of a transaction. If single is true it returns only the first entry or
// the first transaction. After the end of ctx it returns the held entries, and then an error.
func (q *queue) take(ctx context.Context, single bool) ([]wire.Entry, error) {
	for ended := false; ; {
		q.mu.Lock()
		n := wire.Cut(q.entries, single)
		q.needsMore = n == 0
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
		signal(q.takeWaits)
		select {
		case <-q.filled:
		case <-ctx.Done():
			ended = true
		}
	}
}

// awaitTake waits until take waits for entries, at most for pause.
func (q *queue) awaitTake(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-q.takeWaits:
	case <-ctx.Done():
	}
}
