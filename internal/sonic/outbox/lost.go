package outbox

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// Load has the Redis of a lane run this version of the library. What the library that was there has published and nobody has stored, or holds, is counted as
// lost before: the new one does not know of it. Who fails in between may count it again, or leave it counted: it is never missing. owner says that this
// process has the topic: nobody else can store it then.
func Load(ctx context.Context, l *lane.Lane, log *zap.Logger, owner bool) error {
	lost, published, err := l.Unstored(ctx, owner)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	if lost > 0 {
		if err := lose(ctx, l, log, lost); err != nil {
			return err
		}
		if err := l.Shipped(ctx, message.ID{}, published); err != nil { // nobody is to count it again
			return fmt.Errorf("cannot say that it is counted: %w", err)
		}
	}
	if err := l.Load(ctx); err != nil {
		return fmt.Errorf("cannot load the library: %w", err)
	}
	return nil
}

// lose says that effects are lost, and counts them.
func (l *loader) lose(ctx context.Context, n int64) error { return lose(ctx, l.lane, l.log, n) }

func lose(ctx context.Context, l *lane.Lane, log *zap.Logger, n int64) error {
	log.Error("effects are lost: other zones do not have what they changed. Find and repair it by sonic -repair", zap.Int64("at_most", n))
	if err := l.Lose(ctx, n); err != nil {
		return fmt.Errorf("cannot count what is lost: %w", err)
	}
	return nil
}
