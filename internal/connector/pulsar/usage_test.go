package pulsar

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A topic that is idle makes room for another also when the clock was set back after its last use.
func TestIdleAfterTheClockWasSetBack(t *testing.T) {
	var u usage
	u.acquire()
	u.release()
	now := time.Now().Add(-time.Hour)
	require.Positive(t, u.idle(now))
	require.Equal(t, time.Minute, u.idle(now.Add(time.Minute)))
}
