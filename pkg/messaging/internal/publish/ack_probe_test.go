package publish

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// lostAfter asks once a second, and returns when the receipt counts as lost.
func lostAfter(t *testing.T, p *ackProbe, since time.Time) time.Duration {
	t.Helper()
	began := time.Now()
	for !p.lost(t.Context(), since, time.Now()) {
		time.Sleep(time.Second)
		require.Less(t, time.Since(began), time.Hour)
	}
	return time.Since(began)
}

func TestReceiptIsLostOnlyWhenTheBrokerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Minute)
		p := ackProbe{grace: 5 * time.Second, query: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			if time.Now().Before(back) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		lost := lostAfter(t, &p, time.Now())
		require.GreaterOrEqual(t, lost, time.Minute+p.grace)
		require.Less(t, lost, time.Minute+p.grace+6*time.Second)
		require.False(t, p.lost(t.Context(), back, time.Now()), "it begins anew")
	})
}

// The result for one record does not apply to the next.
func TestAnotherRecordBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := ackProbe{grace: 5 * time.Second, query: func(context.Context) error {
			asked++
			return nil
		}}
		first := time.Now()
		for range 4 {
			require.False(t, p.lost(t.Context(), first, time.Now()))
			time.Sleep(time.Second)
		}
		second := first.Add(time.Second)
		require.GreaterOrEqual(t, lostAfter(t, &p, second), p.grace)
		require.Equal(t, 2, asked)
	})
}

func TestNoAnswerIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := ackProbe{query: func(context.Context) error {
			if asked++; asked < 5 {
				return errors.New("unavailable")
			}
			return nil
		}}
		lostAfter(t, &p, time.Now())
		require.Equal(t, 5, asked)
	})
}
