package outbox

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// prune scans the versions in steps of pruneCount with a pause of pruneStep, so that Redis can
// serve clients in between. It begins a new round at most once per pruneRound.
const (
	pruneCount = 500
	pruneStep  = 10 * time.Millisecond
	pruneRound = time.Second
)

// prune removes versions that no zone needs any more.
func (l *loader) prune(ctx context.Context) error {
	cursor := "0"
	for {
		next, left, err := l.library.Prune(ctx, cursor, pruneCount)
		if err != nil {
			return fmt.Errorf("cannot prune versions: %w", err)
		}
		wait := pruneStep
		if cursor = next; cursor == "0" {
			wait = pruneRound
			l.log.Debug("checked all versions for pruning", zap.Int64("left", left))
		}
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}
