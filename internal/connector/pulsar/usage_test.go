package pulsar

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIdleTimeBeginsWithTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := usage{opened: time.Now()}
		for range 2 {
			u.acquire()
		}
		time.Sleep(time.Hour)
		u.release()
		require.Zero(t, u.idle(time.Now()), "it has a user")
		u.release()
		time.Sleep(time.Minute)
		require.Equal(t, time.Minute, u.idle(time.Now()))
	})
}
