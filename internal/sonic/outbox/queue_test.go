package outbox

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func made(n int) []wire.Entry {
	entries := make([]wire.Entry, n)
	for i := range entries {
		entries[i] = wire.Entry{ID: wire.ID{Ms: uint64(i + 1)}, Effects: "x"}
	}
	return entries
}

func transaction(name string, effects ...string) []wire.Entry {
	var entries []wire.Entry
	for _, e := range effects {
		entries = append(entries, wire.Entry{Effects: e, Transaction: name})
	}
	return append(entries, wire.Entry{Transaction: name})
}

func TestReadingAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		ctx, cancel := context.WithCancel(t.Context())
		read := 0
		go func() {
			for q.put(ctx, made(100)) == nil {
				read += 100
			}
		}()
		synctest.Wait()
		assert.LessOrEqual(t, read, maxQueuedEntries)
		for range 3 {
			taken, err := q.take(ctx, false)
			require.NoError(t, err)
			require.Len(t, taken, wire.PackEntries)
			synctest.Wait()
		}
		assert.Greater(t, read, maxQueuedEntries)
		cancel()
		synctest.Wait()
	})
}

// A transaction that is larger than what is read ahead can still be stored whole.
func TestALargeTransactionIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transaction("t", strings.Split(strings.Repeat("a", 3*maxQueuedEntries), "")...)
		q := newQueue()
		go func() {
			for rest := all; len(rest) > 0; rest = rest[min(100, len(rest)):] {
				if q.put(t.Context(), rest[:min(100, len(rest))]) != nil {
					return
				}
			}
		}()
		taken, err := q.take(t.Context(), false)
		require.NoError(t, err)
		assert.Len(t, taken, len(all))
	})
}
