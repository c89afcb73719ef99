package publish

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRoomIsShared: who is stuck leaves the others as much as it has.
func TestRoomIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sharedBytes{limit: 120}
		a, b, c := r.bound(nil), r.bound(nil), r.bound(nil)
		fill := func(s *boundedPublisher) (n int64) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for s.acquire(ctx, 10) == nil {
				n += 10
			}
			return n
		}
		assert.Equal(t, int64(60), fill(a))
		assert.Equal(t, int64(30), fill(b))
		assert.Equal(t, int64(20), fill(c), "there is always some left")
		assert.Empty(t, c.turn, "who gave up waits no more")
		require.NoError(t, r.bound(nil).acquire(t.Context(), 10), "more than a share, for who has nothing")
		assert.Equal(t, int64(120), r.used)
		a.release(60)
		assert.Equal(t, int64(20), fill(b))
	})
}

// TestRoomLetsInInOrder: those of one topic one after the other, whatever their size.
func TestRoomLetsInInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sharedBytes{limit: 100}
		a, b := r.bound(nil), r.bound(nil)
		require.NoError(t, a.acquire(t.Context(), 50))
		in := make(chan int64, 3)
		for _, n := range []int64{45, 10, 5} {
			go func() {
				if assert.NoError(t, a.acquire(t.Context(), n)) {
					in <- n
				}
			}()
			synctest.Wait()
		}
		require.NoError(t, b.acquire(t.Context(), 10), "another does not wait for them")
		assert.Empty(t, in)
		a.release(50)
		synctest.Wait()
		require.Len(t, in, 1, "none overtakes")
		assert.Equal(t, int64(45), <-in)
		a.release(45)
		synctest.Wait()
		assert.Len(t, in, 2)
		assert.Equal(t, int64(25), r.used)
		assert.Empty(t, a.turn)
		assert.Nil(t, r.freed)
	})
}
