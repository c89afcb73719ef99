package measure

import (
	"context"
	"time"
)

// InTurn runs each side once in every round. Who goes first changes from round to round, so
// that none always follows another.
func InTurn(rounds int, sides ...func(round int) error) error {
	for round := range rounds {
		for i := range sides {
			if err := sides[(round+i)%len(sides)](round); err != nil {
				return err
			}
		}
	}
	return nil
}

// Into makes a side of InTurn that keeps what run returns.
func Into[T any](all *[]T, run func(round int) (T, error)) func(round int) error {
	return func(round int) error {
		one, err := run(round)
		*all = append(*all, one)
		return err
	}
}

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

// Each is a figure of every one.
func Each[T any](all []T, f func(T) float64) []float64 {
	var vs []float64
	for _, one := range all {
		vs = append(vs, f(one))
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
