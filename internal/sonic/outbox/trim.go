package outbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// trimmer removes from the outbox what the topic has. It works concurrently with the storing, and
// skips intermediate ids: only the latest one counts.
type trimmer struct {
	library *redislib.Library
	wake    chan struct{}

	mu sync.Mutex
	to wire.ID
}

func newTrimmer(l *redislib.Library) *trimmer {
	return &trimmer{library: l, wake: make(chan struct{}, 1)}
}

func (t *trimmer) trimTo(id wire.ID) {
	t.mu.Lock()
	t.to = id
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
	to := t.to
	t.mu.Unlock()
	return t.library.Shipped(ctx, to)
}
