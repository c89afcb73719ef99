package reach

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhyTheClusterDoesNotAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close()) // nobody listens there
	life, end := context.WithCancel(t.Context())
	c := New(life, []string{free.Addr().String(), ln.Addr().String()}, time.Second)
	look := func() error {
		c.mu.Lock()
		c.began = time.Time{}
		before := c.ended
		c.mu.Unlock()
		_ = c.Err()
		require.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.ended.After(before)
		}, 5*time.Second, time.Millisecond)
		return c.Err()
	}
	require.NoError(t, c.Err(), "not known yet")
	require.NoError(t, look(), "one of them answers")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, look(), syscall.ECONNREFUSED)

	c.mu.Lock()
	c.ended = time.Now().Add(-fresh - time.Second)
	c.mu.Unlock()
	require.NoError(t, c.Err(), "what was seen long ago says nothing")
	end()
	require.NoError(t, New(life, []string{"127.0.0.1:1"}, time.Second).Err())
}
