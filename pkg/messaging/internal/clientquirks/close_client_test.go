package clientquirks_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestClosingWaitsForWhatIsBeingOpened(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{
		time.Second / 2: time.Second / 2,
		time.Minute:     time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			var openings clientquirks.Openings
			end := openings.Begin()
			time.AfterFunc(takes, end)
			began := time.Now()
			openings.Wait()
			require.Equal(t, want, time.Since(began))
			time.Sleep(time.Hour)
		})
	}
}
