package rabbitmq

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSocketNeverBlocks: Write returns while the other side reads nothing. Later everything arrives,
// in order.
func TestSocketNeverBlocks(t *testing.T) { synctest.Test(t, testSocketNeverBlocks) }

func testSocketNeverBlocks(t *testing.T) {
	t.Helper()
	near, far := net.Pipe()
	w := newAsyncSocket(near)
	var want []byte
	for i := range 10_000 {
		p := []byte{byte(i), byte(i >> 8)}
		want = append(want, p...)
		_, err := w.Write(p)
		require.NoError(t, err)
	}
	got := make([]byte, len(want))
	_, err := io.ReadFull(far, got)
	require.NoError(t, err)
	assert.Equal(t, want, got)

	_, err = w.Write([]byte("nobody reads this"))
	require.NoError(t, err)
	began := time.Now()
	_ = w.Close()
	assert.Equal(t, closeWriteTimeout, time.Since(began))
	_, err = w.Write([]byte("x"))
	require.Error(t, err)
	_ = w.Close()
	require.NoError(t, far.Close())
}

func TestSocketReportsAnEarlierError(t *testing.T) { synctest.Test(t, testSocketReportsAnEarlierError) }

func testSocketReportsAnEarlierError(t *testing.T) {
	t.Helper()
	near, far := net.Pipe()
	w := newAsyncSocket(near)
	require.NoError(t, far.Close())
	_, err := w.Write([]byte("x"))
	require.NoError(t, err)
	_, err = w.Read(make([]byte, 1))
	require.Error(t, err)
	synctest.Wait()
	_, err = w.Write([]byte("y"))
	require.Error(t, err)
	_ = w.Close()
}
