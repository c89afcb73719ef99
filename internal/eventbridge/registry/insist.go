package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// errFinal is in errors that trying again does not help.
var errFinal = errors.New("cannot be right")

// sayEvery is how often it is said again that something does not succeed.
const sayEvery = time.Minute

// insist calls try until it succeeds, fails for good, or ctx ends. It says what does not succeed at the first failure, and once a minute from then on:
// whoever looks at the log in an outage must not find it silent.
// waiting, which may be nil, is told each failure.
func insist(ctx context.Context, log *zap.Logger, what string, waiting func(error), try func() error) error {
	wait := 100 * time.Millisecond
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
		if now := time.Now(); now.Sub(said) >= sayEvery {
			said = now
			log.Warn("cannot "+what+" yet, will keep trying", zap.Duration("for", now.Sub(began).Round(time.Second)), zap.Error(err))
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("%w (last failure: %w)", context.Cause(ctx), err)
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// pause waits about d, and reports whether ctx lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
