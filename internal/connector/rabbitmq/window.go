package rabbitmq

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// byteWindow bounds the bytes in use. A message larger than the bound takes all of it: it is
// admitted when nothing else is in use.
type byteWindow struct {
	size int64
	free *semaphore.Weighted
}

func newByteWindow(size int64) *byteWindow {
	return &byteWindow{size: size, free: semaphore.NewWeighted(size)}
}

// acquire waits for n bytes, after those who wait already, until ctx or running ends.
func (w *byteWindow) acquire(ctx, running context.Context, n int64) error {
	n = min(n, w.size)
	if w.free.TryAcquire(n) {
		return nil
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(running, cancel)()
	switch err := w.free.Acquire(waiting, n); {
	case err == nil || ctx.Err() != nil:
		return err
	default:
		return errStopped
	}
}

func (w *byteWindow) release(n int64) { w.free.Release(min(n, w.size)) }

// waitEmpty waits until no bytes are in use, at most until ctx ends.
func (w *byteWindow) waitEmpty(ctx context.Context) {
	if w.free.Acquire(ctx, w.size) == nil {
		w.free.Release(w.size)
	}
}
