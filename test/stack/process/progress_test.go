package process

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestDuringWritesNothingAfterItsEnd: end waits for a line that is being made.
func TestDuringWritesNothingAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		end := NewProgress(&out).During(2*time.Second, func(elapsed time.Duration) string {
			time.Sleep(time.Second)
			return elapsed.String()
		})
		time.Sleep(2500 * time.Millisecond)
		assert.Empty(t, out.String())
		end()
		assert.Equal(t, "  2s\n", out.String())
		time.Sleep(time.Minute)
		assert.Equal(t, "  2s\n", out.String())
	})
}
