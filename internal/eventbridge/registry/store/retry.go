package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// errFinal wraps permanent errors.
var errFinal = errors.New("permanent error")

// logInterval is how often a lasting failure is logged.
const logInterval = time.Minute

// retryForever calls try until it succeeds, returns a permanent error, or ctx ends. It logs the
// first failure and then one a minute, so that the log shows that an outage lasts. It calls
// waiting, which may be nil, with each failure.
func retryForever(ctx context.Context, log *zap.Logger, what string, waiting func(error), try func() error) error {
	wait := backoff.Backoff{Max: 5 * time.Second}
	began, said := time.Now(), time.Time{}
	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errFinal), errors.Is(err, messaging.ErrClosed), errors.Is(err, messaging.ErrInvalidTopic):
			return err
		}
		if waiting != nil {
			waiting(err)
		}
		if now := time.Now(); now.Sub(said) >= logInterval {
			said = now
			log.Warn("cannot "+what+" yet, will keep trying", zap.Duration("for", now.Sub(began).Round(time.Second)), zap.Error(err))
		}
		if !wait.Wait(ctx) {
			return fmt.Errorf("%w (last failure: %w)", context.Cause(ctx), err)
		}
	}
}

// sleep waits for about d: instances must not try again at the same moment. It reports false if ctx
// ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	return backoff.Sleep(ctx, d/2+backoff.Jitter(d))
}
