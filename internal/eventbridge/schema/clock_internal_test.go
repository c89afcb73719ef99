package schema

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// What costs more time than its steps say is ended by the clock, and what costs as much as they say
// is not.
func TestTimeIsChargedWhereStepsAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter()
		check := func(pause time.Duration) (left int, enough bool) {
			return m.measure(2_000_000, func() {
				for range 100 {
					m.spend(clockEvery)
					time.Sleep(pause)
				}
			})
		}
		left, enough := check(10 * time.Millisecond)
		assert.True(t, enough)
		assert.Equal(t, 1_900_000, left, "a hundred thousand steps in a second")
		left, enough = check(100 * time.Millisecond)
		assert.True(t, enough)
		assert.Equal(t, 1_604_000, left, "ten seconds, of which the last tenth was not looked at")
		began := time.Now()
		_, enough = check(time.Second)
		assert.False(t, enough)
		assert.Less(t, time.Since(began), 52*time.Second)
	})
}
