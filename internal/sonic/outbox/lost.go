package outbox

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Load makes the Redis of a shard use this version of the library. Before it replaces another
// version, it counts the published effects that no process has stored or holds as lost, because the
// new library does not know them. After a failure in between, they may be counted twice, but never
// too low. owner says that this process owns the topic, so that no other process can store them.
func Load(ctx context.Context, l *redislib.Library, log *zap.Logger, owner bool) error {
	lost, published, err := l.Unstored(ctx, owner)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	if lost > 0 {
		if err := countLost(ctx, l, log, lost); err != nil {
			return err
		}
		if err := l.Shipped(ctx, wire.ID{}, published); err != nil { // so that they are not counted again
			return fmt.Errorf("cannot mark the lost effects as counted: %w", err)
		}
	}
	if err := l.Load(ctx); err != nil {
		return fmt.Errorf("cannot load the library: %w", err)
	}
	return nil
}

// countLost logs that effects are lost, and counts them.
func (l *loader) countLost(ctx context.Context, n int64) error {
	return countLost(ctx, l.library, l.log, n)
}

func countLost(ctx context.Context, l *redislib.Library, log *zap.Logger, n int64) error {
	log.Error("effects are lost: other zones do not have their changes. Repair that with sonic -repair", zap.Int64("at_most", n))
	if err := l.AddLost(ctx, n); err != nil {
		return fmt.Errorf("cannot count the lost effects: %w", err)
	}
	return nil
}
