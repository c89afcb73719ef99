package kafka

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/config"
)

// TestFetchedAheadFollowsTheRoutesShare: many routes hold no more together than one alone.
func TestFetchedAheadFollowsTheRoutesShare(t *testing.T) {
	c := DefaultSourceConfig()
	const whole = 128 << 20
	assert.EqualValues(t, c.BufferBytes, c.bufferSize(whole))
	assert.Equal(t, c.FetchBytes, c.fetchSize(whole))
	conf, err := c.settings(whole / 100)
	assert.NoError(t, err)
	assert.EqualValues(t, whole/800, conf.Consumer.Fetch.Default)
	assert.EqualValues(t, whole/400, conf.Consumer.Fetch.MaxBytes)
	for _, routes := range []int64{2, 10, 100} {
		assert.LessOrEqual(t, routes*c.bufferSize(whole/routes), int64(whole)/4, "%d routes", routes)
		assert.Less(t, c.Memory(0, whole/routes), c.Memory(0, whole)+1)
	}
	assert.EqualValues(t, minBuffer, c.bufferSize(1))
	assert.Equal(t, config.Bytes(minBuffer/2), c.fetchSize(1))
}
