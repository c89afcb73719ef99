package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestABucketGivesBackWhatWasNotUsed: what was taken and given back leaves no trace.
func TestABucketGivesBackWhatWasNotUsed(t *testing.T) {
	now := time.Unix(1000, 0)
	b := NewBucket(10, 20, now)
	assert.Zero(t, b.Take(now, 15))
	assert.Equal(t, 500*time.Millisecond, b.Take(now, 10), "five are left")
	assert.InDelta(t, 5, b.Available(now), 0, "what is refused takes nothing")
	b.Return(now, 15)
	assert.True(t, b.Full(now))
	b.Return(now, 15)
	assert.InDelta(t, 20, b.Available(now), 0, "never more than the burst")
	assert.Zero(t, b.Take(now, 50), "more than the burst, when all of it is there")
	assert.InDelta(t, -30, b.Available(now), 0)
	assert.Equal(t, 3100*time.Millisecond, b.Wait(now, 1))
	later := now.Add(10 * time.Second)
	assert.True(t, b.Full(later.Add(time.Second)) || b.Available(later) == 20)
	b.Charge(later, 9)
	assert.InDelta(t, 11, b.Available(later), 0)
}
