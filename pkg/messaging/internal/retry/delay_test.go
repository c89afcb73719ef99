package retry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryDelay(t *testing.T) {
	r := Retry{MinDelay: time.Second, MaxDelay: time.Minute}
	within := func(d, low time.Duration) { require.True(t, d >= low && d <= low+low/5, "%s for %s", d, low) }
	within(r.delay(1), time.Second)
	within(r.delay(2), 2*time.Second)
	within(r.delay(6), 32*time.Second)
	within(r.delay(7), time.Minute)
	within(r.delay(1<<40), time.Minute)
}
