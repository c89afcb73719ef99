package outbox

import (
	"context"
	"slices"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
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
	mu               sync.Mutex
	entries          []wire.Entry
	bytes            int
	publishedNumbers []publishedNumber // of the held entries that were published
	received         int64             // number of the last published effect that was received; -1: none
	needsMore        bool              // the queue holds only the beginning of a transaction: put may exceed the bounds
	filled           chan struct{}     // has one element when there may be entries to take
	emptied          chan struct{}     // has one element when there may be room for entries
	takeWaits        chan struct{}     // has one element when take waits for entries
}

// publishedNumber is the number under which an entry was published.
type publishedNumber struct {
	id     wire.ID
	number int64
}

func newQueue() *queue {
	return &queue{received: -1, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1), takeWaits: make(chan struct{}, 1)}
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

// add adds entries without regard to the bounds.
func (q *queue) add(entries []wire.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.append(entries)
}

// addPublished adds entries, and keeps the number under which the entry id was published. It does
// both under one lock: the entries may be stored at once, and then trimTo must report the number to
// Redis.
func (q *queue) addPublished(entries []wire.Entry, id wire.ID, number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.publishedNumbers, q.received = append(q.publishedNumbers, publishedNumber{id, number}), number
	q.append(entries)
}

func (q *queue) append(entries []wire.Entry) {
	q.entries = append(q.entries, entries...)
	q.bytes += sizeOf(entries)
	signal(q.filled)
}

// putBack puts entries that were taken back to the front.
func (q *queue) putBack(entries []wire.Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entries = append(slices.Clone(entries), q.entries...)
	q.bytes += sizeOf(entries)
}

// dropUpTo removes the entries up to id. It returns how many it removed, and whether the last of
// them has that id.
func (q *queue) dropUpTo(id wire.ID) (n int, last bool) {
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

// size returns the size of the held entries in bytes.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// fillsMessage reports whether the held entries fill a message.
func (q *queue) fillsMessage() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) >= wire.PackEntries || q.bytes >= wire.PackBytes
}

// lastID returns the id of the last held entry; zero for none.
func (q *queue) lastID() wire.ID {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries) == 0 {
		return wire.ID{}
	}
	return q.entries[len(q.entries)-1].ID
}

// syncReceived returns the number of the last published effect that was received or is in the
// topic. The next one must have the following number.
func (q *queue) syncReceived(u redislib.Unsent) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u.Published < q.received { // Redis was restarted, and its numbers start over
		q.publishedNumbers, q.received = nil, -1
	}
	q.received = max(q.received, u.Stored)
	return q.received
}

// publishedUpTo returns the number of the last published entry that is not after id, -1 for none.
// It removes the numbers up to that one.
func (q *queue) publishedUpTo(id wire.ID) (number int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, number := 0, int64(-1)
	for n < len(q.publishedNumbers) && q.publishedNumbers[n].id.Compare(id) <= 0 {
		number = q.publishedNumbers[n].number
		n++
	}
	if q.publishedNumbers = q.publishedNumbers[n:]; len(q.publishedNumbers) == 0 {
		q.publishedNumbers = nil
	}
	return number
}

// count returns the number of held entries.
func (q *queue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries)
}

// peek returns the entries of the next message after id without removing them. If single is true it
// returns only the first entry or the first transaction.
func (q *queue) peek(id wire.ID, single bool) []wire.Entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.entries) && q.entries[n].ID.Compare(id) <= 0 {
		n++
	}
	rest := q.entries[n:]
	return slices.Clone(rest[:wire.Cut(rest, single)])
}
