package apply

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLagsOfTheLastMinute(t *testing.T) {
	var l lags
	now := time.Unix(1000, 0)
	assert.Zero(t, l.last(now))
	for i := range 100 {
		l.add(now, time.Duration(i+1)*time.Millisecond)
	}
	assert.Equal(t, Lags{P50: 50 * time.Millisecond, P99: 99 * time.Millisecond, Messages: 100}, l.last(now))
	now = now.Add(30 * time.Second)
	l.add(now, -time.Second)
	assert.Equal(t, 101, l.last(now).Messages)
	now = now.Add(45 * time.Second)
	assert.Equal(t, Lags{Messages: 1}, l.last(now), "a clock that is ahead is no lag")
	for range maxLags {
		l.add(now, time.Second)
	}
	assert.Equal(t, Lags{P50: time.Second, P99: time.Second, Messages: maxLags}, l.last(now))
	assert.Zero(t, l.last(now.Add(lagsPeriod)))
}
