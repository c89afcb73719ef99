package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// trimmer removes from the outbox what the topic has, beside the storing: only the latest id counts.
type trimmer struct {
	lane *lane.Lane
	wake chan struct{}

	mu        sync.Mutex
	to        message.ID
	published int64 // of the effects that were published, how many are stored; -1: not known
}

func newTrimmer(l *lane.Lane) *trimmer {
	return &trimmer{lane: l, wake: make(chan struct{}, 1), published: -1}
}

func (t *trimmer) behind(id message.ID, published int64) {
	t.mu.Lock()
	t.to, t.published = id, max(t.published, published) // a message of effects that were not published says nothing about those before it
	t.mu.Unlock()
	signal(t.wake)
}

func (t *trimmer) run(ctx context.Context) error {
	for {
		select {
		case <-t.wake:
		case <-ctx.Done():
			return nil
		}
		if err := t.trim(ctx); err != nil {
			return fmt.Errorf("cannot trim the outbox: %w", err)
		}
	}
}

func (t *trimmer) trim(ctx context.Context) error {
	t.mu.Lock()
	to, published := t.to, t.published
	t.mu.Unlock()
	return t.lane.Shipped(ctx, to, published)
}

// endTimeout is how long the end of a trimmer may take.
const endTimeout = time.Second

// end tells Redis what was stored last, which may be behind the end of run: else who comes next counts published effects as lost that are stored. It
// does what it can: Redis may be away.
func (t *trimmer) end(ctx context.Context) {
	if t.to.IsZero() { // nothing was stored
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = t.trim(ctx)
}
