package rabbitmq

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPrefetchFollowsTheSizeOfMessages: few at first, then as many as fit, and again when their size changes.
func TestPrefetchFollowsTheSizeOfMessages(t *testing.T) {
	p := prefetch{most: 2000, bytes: 32 << 20}
	assert.Equal(t, 32, p.begin())
	// after notes messages of one size and returns how many of them it took to change the count.
	after := func(size int64, most int) int {
		for n := 1; n <= most; n++ {
			if p.note(size) {
				return n
			}
		}
		return 0
	}
	assert.Equal(t, 32, after(500, 1000))
	assert.Equal(t, 2000, p.begin(), "not more than prefetch")
	assert.Zero(t, after(16<<10, 10_000), "they fit")
	assert.Zero(t, after(20<<10, 10_000), "that is not worth a change")
	assert.LessOrEqual(t, after(1<<20, 1000), sizesSeen)
	assert.Less(t, p.begin(), 200, "the average")
	after(1<<20, 1000)
	assert.InDelta(t, 32, p.begin(), 32)
	assert.Positive(t, after(100<<20, 1000))
	assert.Equal(t, 1, p.begin(), "one at least")
	assert.Positive(t, after(1<<20, 1000))
	assert.Equal(t, 32, p.begin())
}
