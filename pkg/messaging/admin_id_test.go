package messaging

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
)

// A subscription that is to begin at a message in chunks begins at its first chunk.
func TestPositionOfAMessageInChunks(t *testing.T) {
	at, err := adminID(startingAt(newMessageID(entryPlaceOf(7, 9), 2, 0, 1), entryPlaceOf(6, 300)))
	require.NoError(t, err)
	require.Equal(t, admin.MessageID{Ledger: 6, Entry: 300, Partition: 2, Batch: -1}, at)
}
