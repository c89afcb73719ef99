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

// TestWorkspacesAreKeptByTheirSize: small requests do not get large ones, of which many
// could come together, and those beyond measure are given up.
func TestWorkspacesAreKeptByTheirSize(t *testing.T) {
	const small, large, beyond = 1 << 20, keepSmall + 1, keepLarge + 1
	for _, size := range []int{small, large, beyond} {
		v := new(receiver)
		kept := func(contentLength int64) (n int) {
			for range 32 {
				v.release(&workspace{decoded: make([]byte, 0, size)})
			}
			for range 32 { // the race detector makes pools lose some
				if cap(v.newWorkspace(contentLength).decoded) == size {
					n++
				}
			}
			return n
		}
		assert.Equal(t, size == small, kept(largeBody) > 0, size)
		assert.Equal(t, size == large, kept(largeBody+1) > 0, size)
		assert.Equal(t, size == large, kept(unknownLen) > 0, size)
	}
}
