package messaging

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// The underlying client's calls have no context, and some can hang for good. What follows calls
// them all the same: a call that is given up goes on in its goroutine.

// within runs f in a goroutine and reports whether it returned before ctx ended. What f brings
// must need no undoing: callUntil is for that.
func within(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// callUntil calls f and gives it up when ctx ends: the error is ctx's cause then. What f brings
// later goes to undo.
func callUntil[T any](ctx context.Context, f func() (T, error), undo func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	made := make(chan result) // unbuffered: a result is handed over or undone
	go func() {
		v, err := f()
		select {
		case made <- result{v, err}:
		case <-ctx.Done():
			if err == nil && undo != nil {
				undo(v)
			}
		}
	}()
	select {
	case r := <-made:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// callWithTimeout is callUntil that also gives up after several operation timeouts, with
// errSubscribeHangs.
func callWithTimeout[T any](ctx context.Context, c *Cluster, f func() (T, error), undo func(T)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.callTimeout(), errSubscribeHangs)
	defer cancel()
	return callUntil(ctx, f, undo)
}

// callTimeout is how long a call of the underlying client may take before it counts as hanging.
func (c *Cluster) callTimeout() time.Duration { return callTimeouts * c.operationTimeout }

// insist calls try until it succeeds, fails for good, or ctx ends.
func insist(ctx context.Context, log *zap.Logger, try func() error) error {
	var b backoff.Backoff
	for {
		err := try()
		if err == nil || permanent(err) {
			return err
		}
		if ctx.Err() == nil && !b.Started() { // else the caller only stops waiting
			log.Warn("no answer about a topic yet, will keep trying", zap.Error(err))
		}
		if !backoff.Sleep(ctx, b.Next()) {
			return fmt.Errorf("%w (last failure: %w)", context.Cause(ctx), err)
		}
	}
}

// eitherEnds is ctx that ends also when other does, with other's cause then.
func eitherEnds(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	forget := context.AfterFunc(other, func() { end(context.Cause(other)) })
	return ctx, func() {
		forget()
		end(nil)
	}
}

// closeReceiving closes a consumer, and meanwhile takes what it delivers to ch: the broker's answer
// to the closing comes behind the messages that are on their way, and when the underlying queue is
// full the connection reads no further (consumer_partition.go, MessageReceived). With it every
// consumer and publisher of the connection would stand still.
func closeReceiving(raw interface{ Close() }, ch <-chan pulsar.ConsumerMessage) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		raw.Close()
	}()
	for {
		select {
		case <-ch: // the broker delivers it again
		case <-closed:
			return
		}
	}
}
