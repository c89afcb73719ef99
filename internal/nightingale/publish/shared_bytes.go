package publish

import (
	"context"
	"sync"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// sharedBytes bounds the bytes that the publishers of all topics hold together. One publisher may
// hold at most as much as it leaves free. So one stuck topic takes at most half of the bytes, two
// take a third each, and some bytes always remain free.
type sharedBytes struct {
	limit int64
	least int64 // of a record

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when bytes are released; nil: nobody waits for that
}

// boundedPublisher is a publisher that takes the bytes of its records from those of all topics.
type boundedPublisher struct {
	Publisher
	shared *sharedBytes
	used   int64         // guarded by shared.mu
	turn   chan struct{} // has the token of the record that waits; later ones wait for it in order
}

func (b *sharedBytes) bound(p Publisher) *boundedPublisher {
	return &boundedPublisher{Publisher: p, shared: b, turn: make(chan struct{}, 1)}
}

// PublishAsync waits for free bytes, as the publisher itself does with Block.
func (p *boundedPublisher) PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error)) {
	const overhead = 64
	size := min(max(int64(len(r.Payload)+len(r.Key)+overhead), p.shared.least), p.shared.limit)
	if err := p.acquire(ctx, size); err != nil {
		done(messaging.MessageID{}, err)
		return
	}
	p.Publisher.PublishAsync(ctx, r, func(id messaging.MessageID, err error) {
		p.release(size)
		done(id, err)
	})
}

// acquire waits for n bytes, after earlier records of the same publisher. n must not exceed the
// limit.
func (p *boundedPublisher) acquire(ctx context.Context, n int64) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		freed := p.tryAcquire(n)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryAcquire takes n bytes. If it cannot, it returns a channel that is closed when bytes are
// released. A publisher that holds nothing needs only enough free bytes.
func (p *boundedPublisher) tryAcquire(n int64) (freed <-chan struct{}) {
	b := p.shared
	b.mu.Lock()
	defer b.mu.Unlock()
	if free := b.limit - b.used; n <= free && (p.used == 0 || p.used+n <= free) {
		p.used += n
		b.used += n
		return nil
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

// release returns n bytes.
func (p *boundedPublisher) release(n int64) {
	b := p.shared
	b.mu.Lock()
	defer b.mu.Unlock()
	p.used -= n
	b.used -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}
