package throttle_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

func TestChangesPassALineThatSaysSomethingElse(t *testing.T) {
	var lines throttle.Changes
	require.False(t, lines.Forget("a"))
	require.True(t, lines.Allow("a", "down"))
	require.False(t, lines.Allow("a", "down"))
	require.True(t, lines.Allow("b", "down"))
	require.True(t, lines.Allow("a", "refused"))
	require.False(t, lines.Allow("a", "refused"))
	require.True(t, lines.Forget("a"))
	require.True(t, lines.Allow("a", "refused"))
}

func TestChangesForgetTheOldestSubject(t *testing.T) {
	var lines throttle.Changes
	for i := range 256 + 1 {
		require.True(t, lines.Allow(strconv.Itoa(i), "down"))
	}
	require.False(t, lines.Allow("1", "down"), "remembered")
	require.True(t, lines.Allow("0", "down"), "forgotten")
}
