package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// CallWithTimeout calls f, which has no context and can hang for good. It gives f up when ctx ends
// and, with ErrSubscribeHangs, after several operation timeouts. f continues in its goroutine then.
func CallWithTimeout[T any](ctx context.Context, c *Cluster, f func() (T, error), undo func(T)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.CallTimeout(), ErrSubscribeHangs)
	defer cancel()
	return clientquirks.CallUntil(ctx, f, undo)
}

// CallTimeout is how long a call of the underlying client may take before it counts as hanging.
func (c *Cluster) CallTimeout() time.Duration { return callTimeouts * c.OperationTimeout }

// Insist calls try until it succeeds, fails for good, or ctx ends.
func Insist(ctx context.Context, log *zap.Logger, try func() error) error {
	var b backoff.Backoff
	for {
		err := try()
		if err == nil || clientquirks.Permanent(err) {
			return err
		}
		if ctx.Err() == nil && !b.Started() {
			log.Warn("no answer about a topic yet, will keep trying", zap.Error(err))
		}
		if !backoff.Sleep(ctx, b.Next()) {
			return fmt.Errorf("%w (last failure: %w)", context.Cause(ctx), err)
		}
	}
}

// ReaderAsks is how many partitions are asked for their ends at a time.
const ReaderAsks = 16

// callTimeouts is how many operation timeouts subscribing may take: one each for the partitions,
// the lookups and the subscriptions.
const callTimeouts = 3

// ErrSubscribeHangs ends a call that takes longer than CallTimeout.
var ErrSubscribeHangs = errors.New("no answer in time")
