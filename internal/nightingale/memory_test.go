package nightingale

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheMemoryLimitFollowsTheBounds(t *testing.T) {
	cfg := DefaultConfig()
	assert.LessOrEqual(t, memoryLimit(cfg), int64(320<<20))
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

// TestWorkspacesAreKeptByTheirSize: small requests do not get large ones, of which many
// could come together, and those beyond measure are given up.
func TestWorkspacesAreKeptByTheirSize(t *testing.T) {
	const small, large, beyond = 1 << 20, keepSmall + 1, keepLarge + 1
	for _, size := range []int{small, large, beyond} {
		v := new(pools)
		memory := make([]byte, 0, size)
		kept := func(body int) (n int) {
			for range 32 {
				v.releaseSpace(&requestSpace{decoded: memory}) // only its size matters
			}
			for range 32 { // the race detector makes pools lose some
				if cap(v.newSpace(body).decoded) == size {
					n++
				}
			}
			return n
		}
		assert.Equal(t, size == small, kept(largeBody) > 0, size)
		assert.Equal(t, size == large, kept(largeBody+1) > 0, size)
	}
}
