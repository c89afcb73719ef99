package nightingale

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheMemoryLimitFollowsTheBounds(t *testing.T) {
	cfg := DefaultConfig()
	assert.LessOrEqual(t, memoryLimit(cfg), int64(200<<20), "the whole process is to stay within 256 MiB")
	cfg.Profile.MaxPendingBytes += 1 << 30
	assert.Greater(t, memoryLimit(cfg), int64(1<<30))
}
