package script_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

func TestSlotKeys(t *testing.T) {
	t.Parallel()
	for slot := range cluster.Slots {
		keys := script.SlotKeys(slot)
		for _, key := range []string{keys.Outbox, keys.Versions, keys.Cursors, stateKey(keys, "part:a/1")} {
			require.Equal(t, slot, cluster.Slot([]byte(key)), key)
		}
	}
}
