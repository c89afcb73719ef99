package ackprobe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// lostAfter asks once a second, and returns when the receipt counts as lost.
func lostAfter(t *testing.T, p *Probe, since time.Time) time.Duration {
	t.Helper()
	began := time.Now()
	for !p.Lost(t.Context(), since, time.Now()) {
		time.Sleep(time.Second)
		require.Less(t, time.Since(began), time.Hour)
	}
	return time.Since(began)
}

func TestReceiptIsLostOnlyWhenTheBrokerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Minute)
		p := Probe{Grace: 5 * time.Second, Ask: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			if time.Now().Before(back) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		lost := lostAfter(t, &p, time.Now())
		require.GreaterOrEqual(t, lost, time.Minute+p.Grace)
		require.Less(t, lost, time.Minute+p.Grace+6*time.Second)
		require.False(t, p.Lost(t.Context(), back, time.Now()), "it begins anew")
	})
}

// What was found out about one record says nothing about the next.
func TestAnotherRecordBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := Probe{Grace: 5 * time.Second, Ask: func(context.Context) error {
			asked++
			return nil
		}}
		first := time.Now()
		for range 4 {
			require.False(t, p.Lost(t.Context(), first, time.Now()))
			time.Sleep(time.Second)
		}
		second := first.Add(time.Second)
		require.GreaterOrEqual(t, lostAfter(t, &p, second), p.Grace)
		require.Equal(t, 2, asked)
	})
}

func TestNoAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := Probe{Ask: func(context.Context) error {
			if asked++; asked < 5 {
				return errors.New("unavailable")
			}
			return nil
		}}
		lostAfter(t, &p, time.Now())
		require.Equal(t, 5, asked)
	})
}
