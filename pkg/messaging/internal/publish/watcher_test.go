package publish

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatcherWakesThoseThatWereAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher()
		a, b := make(chan struct{}, 1), make(chan struct{}, 1)
		w.add(a)
		w.add(b)
		require.Equal(t, 2, w.count())
		began := time.Now()
		<-a
		<-b
		require.Equal(t, watchEvery, time.Since(began))
		<-a
		require.Equal(t, 2*watchEvery, time.Since(began))
		time.Sleep(3 * watchEvery) // one that does not look is not waited for
		w.remove(b)
		<-b
		<-a
		<-a
		require.Empty(t, b)
		w.remove(a)
		w.remove(a)
		require.Zero(t, w.count())
		time.Sleep(time.Hour)
		require.Empty(t, a, "no timer runs")

		w.add(b)
		began = time.Now()
		<-b
		require.Equal(t, watchEvery, time.Since(began), "it runs again")
		w.remove(b)
	})
}
