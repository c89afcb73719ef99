package watch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatcherWakesThoseThatWereAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New()
		a, b := make(chan struct{}, 1), make(chan struct{}, 1)
		w.Add(a)
		w.Add(b)
		require.Equal(t, 2, w.Count())
		began := time.Now()
		<-a
		<-b
		require.Equal(t, Every, time.Since(began))
		<-a
		require.Equal(t, 2*Every, time.Since(began))
		time.Sleep(3 * Every) // one that does not look is not waited for
		w.Remove(b)
		<-b
		<-a
		<-a
		require.Empty(t, b)
		w.Remove(a)
		w.Remove(a)
		require.Zero(t, w.Count())
		time.Sleep(time.Hour)
		require.Empty(t, a, "no timer runs")

		w.Add(b)
		began = time.Now()
		<-b
		require.Equal(t, Every, time.Since(began), "it runs again")
		w.Remove(b)
	})
}
