package kafka

import (
	"context"
	"sync"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/internal/ring"
)

// fetchBuffer holds the messages of one partition that were fetched and not offered yet. add never
// waits: above the limit it pauses the partition, and still accepts what was requested before, at
// most one fetch. One goroutine adds, another takes and releases.
type fetchBuffer struct {
	limit         func() int64
	pause, resume func()
	added         chan struct{} // holds one token when something was added

	mu     sync.Mutex
	queue  ring.Ring[*sarama.ConsumerMessage]
	bytes  int64 // of the messages in queue, and of those taken and not released
	paused bool
}

func newFetchBuffer(limit func() int64, pause, resume func()) *fetchBuffer {
	return &fetchBuffer{limit: limit, pause: pause, resume: resume, added: make(chan struct{}, 1)}
}

// messageOverhead is roughly the memory that a message takes besides its bytes.
const messageOverhead = 256

func memoryOf(batch []*sarama.ConsumerMessage) int64 {
	cost := messageOverhead * len(batch)
	for _, m := range batch {
		cost += len(m.Key) + len(m.Value)
		for _, h := range m.Headers {
			cost += len(h.Key) + len(h.Value)
		}
	}
	return int64(cost)
}

func (b *fetchBuffer) add(batch []*sarama.ConsumerMessage) {
	cost := memoryOf(batch)
	b.mu.Lock()
	b.queue.Push(batch...)
	b.bytes += cost
	if b.bytes > b.limit() && !b.paused {
		b.paused = true
		b.pause()
	}
	b.mu.Unlock()
	select {
	case b.added <- struct{}{}:
	default:
	}
}

// take returns the next messages in batch's memory, up to its capacity; none once ctx has ended.
func (b *fetchBuffer) take(ctx context.Context, batch []*sarama.ConsumerMessage) []*sarama.ConsumerMessage {
	for ctx.Err() == nil {
		b.mu.Lock()
		n := min(b.queue.Len(), cap(batch))
		batch = batch[:0]
		for range n {
			batch = append(batch, b.queue.Pop())
		}
		b.mu.Unlock()
		if n > 0 {
			return batch
		}
		select {
		case <-b.added:
		case <-ctx.Done():
		}
	}
	return nil
}

// release subtracts the memory of a batch that was taken. It resumes the partition when at most half
// of the limit is in use.
func (b *fetchBuffer) release(batch []*sarama.ConsumerMessage) {
	cost := memoryOf(batch)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= cost
	if b.paused && b.bytes <= b.limit()/2 {
		b.paused = false
		b.resume()
	}
}

// close discards the queue and resumes the partition: this process may get it again.
func (b *fetchBuffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue.Clear()
	if b.paused {
		b.paused = false
		b.resume()
	}
}
