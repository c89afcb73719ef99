package consume

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Failed attempts of partitions that went to another consumer fill the map. Those of a session that
// ends now are known to the next one all the same.
func TestAttemptsOfLostPartitionsDisplaceNoOthers(t *testing.T) {
	var f failedAttempts
	at := func(n int) *task {
		return &task{
			Delivery: &record.Delivery{Attempt: 3, FirstFailed: time.Unix(1, 0)}, at: record.Place{Ledger: 1, Entry: int64(n)},
			entry: &entry{partition: &partition{topic: "t"}},
		}
	}
	for n := range maxFailedAttempts {
		f.note(at(n))
	}
	known := 0
	for n := range 4000 {
		f.note(at(maxFailedAttempts + n))
	}
	for n := range 4000 {
		if f.restore(at(maxFailedAttempts + n)) {
			known++
		}
	}
	require.Equal(t, 4000, known)
}
