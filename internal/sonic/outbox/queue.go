package outbox

import (
	"context"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// entry is one of the stream of effects.
type entry struct {
	id          message.ID
	effects     string // packed, one behind the other; empty at the end of a transaction
	transaction string // empty: none
}

func (e *entry) size() int { return len(e.effects) + entryOverhead }

// entryOverhead is what an entry takes in a message, and here, beside its effects.
const entryOverhead = 40

// Bounds of a message, and of what is read ahead of the one being stored.
const (
	packEntries = 512
	packBytes   = 256 << 10
	aheadCount  = 8 * packEntries
	aheadBytes  = 4 << 20
)

// queue holds what has been read of the stream and is not stored yet. One goroutine puts, one takes.
type queue struct {
	mu      sync.Mutex
	entries []entry
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
func (q *queue) put(ctx context.Context, entries []entry) error {
	q.mu.Lock()
	q.entries = append(q.entries, entries...)
	for i := range entries {
		q.bytes += entries[i].size()
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
func (q *queue) take(ctx context.Context, one bool) ([]entry, error) {
	for {
		q.mu.Lock()
		n := cut(q.entries, one)
		q.starved = n == 0
		if n > 0 {
			taken := q.entries[:n:n]
			q.entries = q.entries[n:]
			if len(q.entries) == 0 {
				q.entries = nil
			}
			for i := range taken {
				q.bytes -= taken[i].size()
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

// cut returns how many of entries go into the next message.
func cut(entries []entry, one bool) int {
	n, bytes := 0, 0
	for n < len(entries) {
		end, ok := unit(entries, n)
		if !ok {
			break // the rest of the transaction has not been read
		}
		for i := n; i < end; i++ {
			bytes += entries[i].size()
		}
		if n > 0 && (end > packEntries || bytes > packBytes) {
			break
		}
		if n = end; one {
			break
		}
	}
	return n
}

// unit returns the end of what begins at begin and is never split: an entry, or all of a transaction. ok is false when the end of
// the transaction is not there.
func unit(entries []entry, begin int) (end int, ok bool) {
	t := entries[begin].transaction
	if t == "" {
		return begin + 1, true
	}
	for i := begin; i < len(entries); i++ {
		switch e := &entries[i]; {
		case e.transaction != t: // it has no end: a function failed
			return i, true
		case e.effects == "":
			return i + 1, true
		}
	}
	return 0, false
}
