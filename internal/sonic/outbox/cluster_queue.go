package outbox

import (
	"context"
	"slices"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clusterQueue holds what the readers of the primaries have taken and what is not stored yet, in the
// order in which they have taken it.
type clusterQueue struct {
	mu      sync.Mutex
	items   []clusterItem
	bytes   int
	filled  chan struct{} // has one element when there may be items
	emptied chan struct{} // is closed, and replaced, when items were removed
}

// clusterItem is a group of entries, or a watermark: the reader has put all effects before that time
// into the queue.
type clusterItem struct {
	reader    *primaryReader
	group     wire.Group
	bytes     int
	watermark primaryWatermark
}

func newClusterQueue() *clusterQueue {
	return &clusterQueue{filled: make(chan struct{}, 1), emptied: make(chan struct{})}
}

// put adds items of one reader, and then waits until the queue is below its bound. It adds none once
// ctx has ended.
func (q *clusterQueue) put(ctx context.Context, items []clusterItem) error {
	if len(items) == 0 {
		return nil
	}
	q.mu.Lock()
	if ctx.Err() != nil {
		q.mu.Unlock()
		return context.Cause(ctx)
	}
	if len(items) > 1 || !q.replaceWatermark(items[0]) {
		q.items = append(q.items, items...)
	}
	for i := range items {
		q.bytes += items[i].bytes
	}
	q.mu.Unlock()
	signal(q.filled)
	for {
		q.mu.Lock()
		full, emptied := q.bytes >= maxQueuedBytes, q.emptied
		q.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-emptied:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// replaceWatermark replaces the last item of the reader by a later watermark, if both are watermarks,
// and reports whether it has. Otherwise a reader without entries would fill the memory while nothing
// can be stored. The caller holds the lock.
func (q *clusterQueue) replaceWatermark(it clusterItem) bool {
	for i := len(q.items) - 1; i >= 0; i-- {
		if last := &q.items[i]; last.reader == it.reader {
			if len(it.group.Entries) > 0 || len(last.group.Entries) > 0 {
				return false
			}
			last.watermark = it.watermark
			return true
		}
	}
	return false
}

// take returns the items of the next message: as many as its bounds allow, and at least one if there
// is any. Groups of one slot follow each other in it: a reader that has begun anew, or that of
// another primary, may have put entries again.
func (q *clusterQueue) take() (items []clusterItem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, entries, bytes, removed := 0, 0, 0, 0
	last := map[int]wire.ID{} // by slot
	for n < len(q.items) {
		it := &q.items[n]
		if len(it.group.Entries) > 0 {
			entries += len(it.group.Entries)
			bytes += it.bytes
			before, has := last[it.group.Slot]
			if removed > 0 && (entries > wire.PackEntries || bytes > wire.PackBytes || has && before != it.group.Prev) {
				break
			}
			last[it.group.Slot] = it.group.Last
			removed += it.bytes
		}
		n++
	}
	items = q.items[:n:n]
	if q.items = q.items[n:]; len(q.items) == 0 {
		q.items = nil
	}
	q.removed(removed)
	return items
}

// removed updates the size after items of that many bytes were removed. The caller holds the lock.
func (q *clusterQueue) removed(bytes int) {
	q.bytes -= bytes
	close(q.emptied)
	q.emptied = make(chan struct{})
}

// remove removes the items of a reader, which takes them from the primary again, or has ended.
func (q *clusterQueue) remove(r *primaryReader) {
	q.mu.Lock()
	defer q.mu.Unlock()
	bytes := 0
	q.items = slices.DeleteFunc(slices.Clone(q.items), func(it clusterItem) bool {
		if it.reader == r {
			bytes += it.bytes
		}
		return it.reader == r
	})
	q.removed(bytes)
}
