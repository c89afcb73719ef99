package outbox

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// resend ships the state of resendCount noted keys, elements and counters at a time, and waits
// until it is stored before the next.
const (
	resendCount = 256
	resendPause = 5 * time.Millisecond
	resendIdle  = 200 * time.Millisecond
)

// resend ships the state of everything that dropped effects changed.
func (l *loader) resend(ctx context.Context) error {
	var waits wire.ID // the effect of the last Resend, until it is stored
	busy := false
	for {
		pause := resendIdle
		if busy {
			pause = resendPause
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
		if l.Status().Stored.Compare(waits) < 0 {
			continue
		}
		id, left, err := l.library.Resend(ctx, resendCount)
		if err != nil && !redislib.NotReady(err) {
			return fmt.Errorf("cannot ship what was dropped: %w", err)
		}
		switch {
		case !id.IsZero() && !busy:
			l.log.Info("shipping the state of the data that changed while effects were dropped", zap.Int64("left", left))
		case id.IsZero() && busy:
			l.log.Info("stopped shipping state: all of it is shipped, or effects are dropped again", zap.Int64("left", left))
		}
		busy, waits = !id.IsZero(), wire.Max(waits, id)
	}
}
