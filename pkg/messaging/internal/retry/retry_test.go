package retry

import (
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

func TestRetriesHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		c := Retry{MaxAttempts: 3, MinDelay: time.Minute, MaxDelay: time.Hour}
		d := &record.Delivery{Attempt: 1, FirstFailed: time.Now()}
		delay, dead := Next(c, d, failed)
		require.NoError(t, dead)
		require.InDelta(t, time.Minute, delay, float64(12*time.Second))
		delay, dead = Next(c, d, RetryAfter(failed, 1000*time.Hour))
		require.NoError(t, dead)
		require.Equal(t, 720*time.Hour, delay, "30 days at most")
		_, dead = Next(c, d, Reject(failed))
		require.ErrorIs(t, dead, failed)

		d.Attempt = 3
		_, dead = Next(c, d, failed)
		require.EqualError(t, dead, "gave up after 3 attempts: failed")

		c.MaxAttempts = 0
		delay, dead = Next(c, d, RetryAfter(failed, 5*time.Hour))
		require.NoError(t, dead)
		require.Equal(t, 5*time.Hour, delay)
		delay, dead = Next(c, d, RetryAfter(failed, -1))
		require.NoError(t, dead)
		require.Zero(t, delay)
	})
}

func TestTruncatedCopies(t *testing.T) {
	d := &record.Delivery{Topic: "t", Attempt: 1, Payload: make([]byte, 5000), Properties: map[string]string{"a": "b"}}
	job := NewCopyJob(d, &CopyTarget{subscription: "s"}, errors.New("no"), 0)
	size := record.SizeOf
	original := size(&record.Record{Payload: d.Payload, Properties: d.Properties})
	require.Greater(t, size(job.Record), original)
	require.True(t, job.Strip(d))
	require.False(t, job.Strip(d), "once")
	require.True(t, job.Truncate(d))
	require.LessOrEqual(t, size(job.Record), original, "what was stored once is stored again")
	require.Equal(t, "5000", job.Record.Properties[record.PropertyTruncated])
	for before := len(job.Record.Payload); before > 0; before = len(job.Record.Payload) {
		require.True(t, job.Truncate(d))
		require.Less(t, len(job.Record.Payload), before)
	}
	require.NotNil(t, job.Record.Payload, "an empty payload is not a null one")
	require.False(t, job.Truncate(d))
	job.Reset(d)
	require.Len(t, job.Record.Payload, 5000)
	require.False(t, maps.Equal(job.Record.Properties, d.Properties))
	require.NotContains(t, job.Record.Properties, record.PropertyTruncated)
}
