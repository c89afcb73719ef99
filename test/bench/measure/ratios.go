package measure

import (
	"context"
	"time"
)

// Ratios are those of one round each.
func Ratios(ours, theirs []float64) []float64 {
	vs := make([]float64, min(len(ours), len(theirs)))
	for i := range vs {
		vs[i] = ours[i] / theirs[i]
	}
	return vs
}

// Differences are those of one round each.
func Differences(ours, theirs []float64) []float64 {
	vs := make([]float64, min(len(ours), len(theirs)))
	for i := range vs {
		vs[i] = ours[i] - theirs[i]
	}
	return vs
}

// Wait waits for d, or until ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
