package outbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// trimmer removes from the outbox what the topic has, beside the storing: only the latest id counts.
type trimmer struct {
	library *script.Library
	wake    chan struct{}

	mu sync.Mutex
	to message.ID
}

func newTrimmer(library *script.Library) *trimmer {
	return &trimmer{library: library, wake: make(chan struct{}, 1)}
}

func (t *trimmer) behind(id message.ID) {
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
		t.mu.Lock()
		to := t.to
		t.mu.Unlock()
		if err := t.library.Shipped(ctx, to.String()); err != nil {
			return fmt.Errorf("cannot trim the outbox: %w", err)
		}
	}
}
