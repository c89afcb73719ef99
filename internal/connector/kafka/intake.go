package kafka

import (
	"context"
	"sync"

	"github.com/IBM/sarama"
)

// intake holds what was fetched of one partition and not offered yet. Adding never waits: above the bound the partition is paused, and what was
// asked for before, at most one fetch, is still taken. One goroutine adds, one takes and releases.
type intake struct {
	limit         func() int64
	pause, resume func()
	filled        chan struct{} // holds one token when something was added

	mu      sync.Mutex
	waiting []*sarama.ConsumerMessage
	head    int   // waiting[:head] are taken
	bytes   int64 // of those waiting, and of those taken and not released
	paused  bool
}

func newIntake(limit func() int64, pause, resume func()) *intake {
	return &intake{limit: limit, pause: pause, resume: resume, filled: make(chan struct{}, 1)}
}

// perMessage is what a message costs besides its bytes, roughly.
const perMessage = 256

func costOf(batch []*sarama.ConsumerMessage) int64 {
	cost := perMessage * len(batch)
	for _, m := range batch {
		cost += len(m.Key) + len(m.Value)
		for _, h := range m.Headers {
			cost += len(h.Key) + len(h.Value)
		}
	}
	return int64(cost)
}

func (q *intake) add(batch []*sarama.ConsumerMessage) {
	cost := costOf(batch)
	q.mu.Lock()
	if q.head > 0 && len(q.waiting)+len(batch) > cap(q.waiting) {
		n := copy(q.waiting, q.waiting[q.head:])
		clear(q.waiting[n:])
		q.waiting, q.head = q.waiting[:n], 0
	}
	q.waiting = append(q.waiting, batch...)
	q.bytes += cost
	if q.bytes > q.limit() && !q.paused {
		q.paused = true
		q.pause()
	}
	q.mu.Unlock()
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take returns the next messages in batch's memory, as many as it has room for; none once ctx has ended.
func (q *intake) take(ctx context.Context, batch []*sarama.ConsumerMessage) []*sarama.ConsumerMessage {
	for ctx.Err() == nil {
		q.mu.Lock()
		n := min(len(q.waiting)-q.head, cap(batch))
		batch = append(batch[:0], q.waiting[q.head:q.head+n]...)
		clear(q.waiting[q.head : q.head+n]) // they are not kept alive from here
		if q.head += n; q.head == len(q.waiting) {
			q.waiting, q.head = q.waiting[:0], 0
		}
		q.mu.Unlock()
		if n > 0 {
			return batch
		}
		select {
		case <-q.filled:
		case <-ctx.Done():
		}
	}
	return nil
}

// release gives back the room of a batch that was taken.
func (q *intake) release(batch []*sarama.ConsumerMessage) {
	cost := costOf(batch)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes -= cost
	if q.paused && q.bytes <= q.limit()/2 {
		q.paused = false
		q.resume()
	}
}

// close lets the partition be fetched again by whoever is given it next, maybe this process.
func (q *intake) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting, q.head = nil, 0
	if q.paused {
		q.paused = false
		q.resume()
	}
}
