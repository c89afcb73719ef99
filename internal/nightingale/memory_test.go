package nightingale

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheMemoryLimitFollowsTheBounds(t *testing.T) {
	cfg := DefaultConfig()
	assert.LessOrEqual(t, memoryLimit(cfg), int64(280<<20))
	cfg.Profile.MaxPendingBytes += 1 << 30
	assert.Greater(t, memoryLimit(cfg), int64(1<<30))
}

// TestTheMemoryLimitLeavesRoomForAnOutage: a queue full of small records, which take
// far more than their bytes, and all requests that may wait beside it.
func TestTheMemoryLimitLeavesRoomForAnOutage(t *testing.T) {
	cfg := DefaultConfig()
	full := int64(cfg.Limits.InFlightBytes) + int64(cfg.Profile.MaxPendingRecords)*1600
	assert.Greater(t, memoryLimit(cfg), full+32<<20)
	cfg.Profile.MaxPendingRecords *= 10
	assert.Greater(t, memoryLimit(cfg), int64(cfg.Profile.MaxPendingRecords)*pendingOverhead)
}
