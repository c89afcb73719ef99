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
	assert.EqualValues(t, c.BufferBytes, c.ahead(whole))
	assert.Equal(t, c.FetchBytes, c.fetch(whole))
	conf, err := c.settings(whole / 100)
	assert.NoError(t, err)
	assert.EqualValues(t, whole/800, conf.Consumer.Fetch.Default)
	assert.EqualValues(t, whole/400, conf.Consumer.Fetch.MaxBytes)
	for _, routes := range []int64{2, 10, 100} {
		assert.LessOrEqual(t, routes*c.ahead(whole/routes), int64(whole)/4, "%d routes", routes)
		assert.Less(t, c.Memory(whole/routes), c.Memory(whole)+1)
	}
	assert.EqualValues(t, leastAhead, c.ahead(1))
	assert.Equal(t, config.Bytes(leastAhead/2), c.fetch(1))
}
