package outbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// trimmer removes from the outbox what the topic has. It works concurrently with the storing, and
// skips intermediate ids: only the latest one counts.
type trimmer struct {
	library *redislib.Library
	wake    chan struct{}

	mu        sync.Mutex
	to        wire.ID
	published int64 // how many of the published effects are stored; -1: not known
}

func newTrimmer(l *redislib.Library) *trimmer {
	return &trimmer{library: l, wake: make(chan struct{}, 1), published: -1}
}

func (t *trimmer) trimTo(id wire.ID, published int64) {
	t.mu.Lock()
	t.to, t.published = id, max(t.published, published) // a message without published effects has -1
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
	return t.library.Shipped(ctx, to, published)
}

// reportTimeout bounds reportLast.
const reportTimeout = time.Second

// reportLast reports the last stored effect to Redis, unless its epoch is another one: then it is
// another Redis. This effect may have been stored after run
// ended. Without the report, the next shipper would count stored effects as lost. reportLast
// ignores errors: Redis may be unreachable.
func (t *trimmer) reportLast(ctx context.Context, epoch int64) {
	if t.to.IsZero() { // nothing was stored
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	if state, err := t.library.ReadState(ctx); err == nil && state.Epoch == epoch {
		_ = t.trim(ctx)
	}
}
