package cluster

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

func TestWhyTheClusterDoesNotAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close()) // nobody listens there
	life, end := context.WithCancel(t.Context())
	c := NewConnectivity(life, []string{free.Addr().String(), ln.Addr().String()}, await.Patience)
	idle := func() { // no check is running that began before the test's last step
		require.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return !c.active
		}, await.Patience, time.Millisecond)
	}
	look := func() error {
		idle()
		c.mu.Lock()
		c.began = time.Time{}
		c.mu.Unlock()
		_ = c.Err()
		idle()
		return c.Err()
	}
	require.NoError(t, c.Err(), "not known yet")
	require.NoError(t, look(), "one of them answers")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, look(), syscall.ECONNREFUSED)

	seen := func(ago time.Duration) error {
		idle()
		c.mu.Lock()
		c.began, c.ended = time.Now(), time.Now().Add(-ago)
		c.mu.Unlock()
		return c.Err()
	}
	require.Error(t, seen(c.timeout+checkFresh/2), "a look that takes its whole time ends then at the earliest")
	require.NoError(t, seen(c.timeout+checkFresh+time.Second), "what was seen long ago says nothing")
	end()
	require.NoError(t, NewConnectivity(life, []string{"127.0.0.1:1"}, await.Patience).Err())
}
