package rabbitmq

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// window bounds how much is in use. Who needs more than the bound takes all of it.
type window struct {
	size int64
	free *semaphore.Weighted
}

func newWindow(size int64) *window { return &window{size: size, free: semaphore.NewWeighted(size)} }

// acquire waits for n, behind those who wait already, until ctx ends.
func (w *window) acquire(ctx context.Context, n int64) error {
	return w.free.Acquire(ctx, min(n, w.size))
}

func (w *window) release(n int64) { w.free.Release(min(n, w.size)) }

// waitEmpty waits until nothing is in use, at most until ctx ends.
func (w *window) waitEmpty(ctx context.Context) {
	if w.acquire(ctx, w.size) == nil {
		w.release(w.size)
	}
}
