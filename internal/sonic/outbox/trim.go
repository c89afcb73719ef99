package outbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// trimmer removes from the outbox what the topic has, beside the storing: only the latest id counts.
type trimmer struct {
	lane *lane.Lane
	wake chan struct{}

	mu sync.Mutex
	to message.ID
}

func newTrimmer(l *lane.Lane) *trimmer {
	return &trimmer{lane: l, wake: make(chan struct{}, 1)}
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
		if err := t.lane.Shipped(ctx, to); err != nil {
			return fmt.Errorf("cannot trim the outbox: %w", err)
		}
	}
}
