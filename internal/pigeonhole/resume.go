package pigeonhole

import (
	"context"
	"sync"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// resumableSink is a sink that can tell what it has stored.
type resumableSink interface {
	// Resume returns the highest offset of from's topic that is stored on the partition of topic
	// with from's partition number; ok is false if there is none. Until Release no other process
	// writes to that partition. An error made by pipeline.Refuse is final.
	Resume(ctx context.Context, topic string, from *message.From) (offset int64, ok bool, err error)
	// Oversized reports whether the sink refuses m because of its size.
	Oversized(m *message.Message) bool
	// Release allows another process to write to the partition.
	Release(topic string, partition int32)
}

// newSkip returns two functions for one pipeline: skip reports whether a message is stored already, and
// release gives up the partitions of the destinations. The source's position is committed after the
// sink has stored, so after a restart or a rebalance the first messages come again. Both are nil
// for routes that store them again.
//
// A pipeline has one partition, its offsets ascend, and the sink stores in order: every message up to
// the last stored offset is stored.
func (r *route) newSkip() (skip func(ctx context.Context, to string, m *message.Message) (bool, error), release func()) {
	if r.resumableSink == nil {
		return nil, nil
	}
	var mu sync.Mutex          // release may be called while a message waits for Resume
	last := map[string]int64{} // by destination
	partition := int32(-1)
	skip = func(ctx context.Context, to string, m *message.Message) (_ bool, err error) {
		mu.Lock()
		stored, known := last[to]
		partition = m.From.Partition
		mu.Unlock()
		defer func() {
			if err != nil && ctx.Err() != nil {
				r.clearHealth(partResuming) // another failing pipeline reports its error again
			}
		}()
		wait := backoff.Backoff{Min: r.cfg.MinBackoff, Max: r.cfg.MaxBackoff}
		for !known {
			offset, ok, err := r.resumableSink.Resume(ctx, to, &m.From)
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
			if _, final := pipeline.Refused(err); final {
				r.report(partResuming, nil) // it is not retried
				return false, err
			}
			r.report(partResuming, err)
			if !wait.Wait(ctx) {
				return false, ctx.Err()
			}
		}
		return m.From.Offset <= stored && !r.resumableSink.Oversized(m), nil
	}
	return skip, func() {
		mu.Lock()
		defer mu.Unlock()
		for to := range last {
			r.resumableSink.Release(to, partition)
		}
	}
}
