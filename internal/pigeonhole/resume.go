package pigeonhole

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// resuming is a sink that knows what it has stored.
type resuming interface {
	// Resume returns the highest offset of from's topic that is known to be stored on the
	// partition of topic that has from's number; false where none is. From then on nobody
	// else writes there. What is refused is so for good.
	Resume(ctx context.Context, topic string, from *message.From) (offset int64, ok bool, err error)
	// Oversized reports whether the sink refuses m whatever it has stored.
	Oversized(m *message.Message) bool
	// Release lets another process write there.
	Release(topic string, partition int32)
}

// skipping returns, for one lane, what tells messages that are stored already: the
// source's position is committed behind the storing, so that after a restart or a
// rebalance the first messages come again. nil for routes that store them again.
//
// Offsets ascend within a partition, one lane has one, and its messages are stored in
// their order: all up to the last one stored are.
func (r *route) skipping() (skip func(ctx context.Context, to string, m *message.Message) (bool, error), release func()) {
	if r.resume == nil {
		return nil, nil
	}
	var mu sync.Mutex          // release may come while a message waits for Resume
	last := map[string]int64{} // by destination
	partition := int32(-1)
	skip = func(ctx context.Context, to string, m *message.Message) (_ bool, err error) {
		mu.Lock()
		stored, known := last[to]
		partition = m.From.Partition
		mu.Unlock()
		defer func() {
			if err != nil && ctx.Err() != nil {
				r.forget(partResuming) // another lane that is ill says so again
			}
		}()
		for wait := r.cfg.MinBackoff; !known; wait = min(2*wait, r.cfg.MaxBackoff) {
			offset, ok, err := r.resume.Resume(ctx, to, &m.From)
			if err == nil {
				if stored = offset; !ok {
					stored = -1
				}
				mu.Lock()
				last[to] = stored
				mu.Unlock()
				r.report(partResuming, nil)
				break
			}
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			if _, final := lane.Refused(err); final {
				r.report(partResuming, nil) // it is not tried on
				return false, err
			}
			r.report(partResuming, err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		return m.From.Offset <= stored && !r.resume.Oversized(m), nil
	}
	return skip, func() {
		mu.Lock()
		defer mu.Unlock()
		for to := range last {
			r.resume.Release(to, partition)
		}
	}
}
