package outbox

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Versions are looked through a step at a time, between which Redis has time for clients, and once a second at most.
const (
	pruneCount = 500
	pruneStep  = 10 * time.Millisecond
	pruneRound = time.Second
)

// prune removes versions that no zone needs any more.
func (l *loader) prune(ctx context.Context) error {
	cursor := "0"
	for {
		next, left, err := l.lane.Prune(ctx, cursor, pruneCount)
		if err != nil {
			return fmt.Errorf("cannot prune versions: %w", err)
		}
		wait := pruneStep
		if cursor = next; cursor == "0" {
			wait = pruneRound
			l.log.Debug("looked through the versions", zap.Int64("left", left))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}
