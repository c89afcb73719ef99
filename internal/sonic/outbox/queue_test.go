package outbox

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

func made(n int) []entry {
	entries := make([]entry, n)
	for i := range entries {
		entries[i] = entry{id: message.ID{Ms: uint64(i + 1)}, effects: "x"}
	}
	return entries
}

func transaction(name string, effects ...string) []entry {
	var entries []entry
	for _, e := range effects {
		entries = append(entries, entry{effects: e, transaction: name})
	}
	return append(entries, entry{transaction: name})
}

func TestAMessageTakesWhatFits(t *testing.T) {
	large := []entry{{effects: strings.Repeat("x", packBytes/2)}, {effects: strings.Repeat("x", packBytes/2)}, {effects: "x"}}
	huge := []entry{{effects: strings.Repeat("x", 2*packBytes)}, {effects: "x"}}
	for name, c := range map[string]struct {
		entries []entry
		one     bool
		want    int
	}{
		"nothing":                     {nil, false, 0},
		"all":                         {made(3), false, 3},
		"the first":                   {made(3), true, 1},
		"as many as a message has":    {made(packEntries + 1), false, packEntries},
		"as many bytes":               {large, false, 1},
		"one that is too large":       {huge, false, 1},
		"a transaction":               {transaction("t", "a", "b"), false, 3},
		"a transaction as the first":  {append(transaction("t", "a", "b"), made(1)...), true, 3},
		"what is before its end":      {append(made(2), transaction("t", "a")[:1]...), false, 2},
		"not one without its end":     {transaction("t", "a", "b")[:2], false, 0},
		"one that never ended":        {append(transaction("t", "a")[:1], made(1)...), false, 2},
		"two, one behind the other":   {append(transaction("t", "a"), transaction("u", "a")...), false, 4},
		"one more than a message has": {append(made(packEntries-1), transaction("t", "a", "b")...), false, packEntries - 1},
		"one larger than a message":   {append(transaction("t", strings.Split(strings.Repeat("a", packEntries), "")...), made(1)...), false, packEntries + 1},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, cut(c.entries, c.one)) })
	}
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
		assert.LessOrEqual(t, read, aheadCount)
		for range 3 {
			taken, err := q.take(ctx, false)
			require.NoError(t, err)
			require.Len(t, taken, packEntries)
			synctest.Wait()
		}
		assert.Greater(t, read, aheadCount)
		cancel()
		synctest.Wait()
	})
}

// A transaction that is larger than what is read ahead can still be stored whole.
func TestALargeTransactionIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := transaction("t", strings.Split(strings.Repeat("a", 3*aheadCount), "")...)
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
