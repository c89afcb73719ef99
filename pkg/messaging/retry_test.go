package messaging

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a copy adds is taken out again, and nothing else is, however often a message is copied.
func TestOwnPropertiesSurviveCopies(t *testing.T) {
	names := []string{"a", "", PropertyReason, PropertyAttempts, PropertySubscription, "aviary_", "aviary_tenant", PropertyEscape,
		PropertyEscape + PropertyReason, PropertyEscape + "a", PropertyEscape + PropertyEscape + "x"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		own := make(map[string]string)
		for range random.IntN(len(names)) {
			name := names[random.IntN(len(names))]
			own[name] = name + "!"
		}
		marks := provenance{attempts: 3, topic: "t", reason: "because", subscription: "s", truncated: 7, due: time.Now()}.marks(random.IntN(2) == 0)
		once := escape(own, marks)
		twice := escape(once, marks)
		p, ok := readProvenance(once)
		require.True(t, ok)
		require.Equal(t, "because", p.reason)
		require.Equal(t, once, unescape(twice))
		if len(own) == 0 {
			require.Nil(t, unescape(once))
			continue
		}
		require.Equal(t, own, unescape(once))
	}
}

func TestProvenanceIsReadAsWritten(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	p := provenance{
		attempts: 3, reason: "because", firstFailed: at, due: at.Add(1), subscription: "s", truncated: 7, empty: true,
		topic: "persistent://a/b/c-partition-1", publishTime: at.Add(2), producer: "p", replicatedFrom: "west",
	}
	got, ok := readProvenance(p.marks(false))
	require.True(t, ok)
	require.Equal(t, p, got)

	p.reason = strings.Repeat("ä", 2*reasonBytes)
	whole, bare := p.marks(false), p.marks(true)
	require.Len(t, whole[PropertyReason], reasonBytes)
	require.Len(t, bare[PropertyReason], bareReasonBytes)
	require.NotContains(t, bare, PropertyOriginProducer)
	for _, other := range []map[string]string{nil, {"a": "b"}, {PropertyAttempts: "3"}, {PropertyAttempts: "x", PropertyOriginTopic: "t"}} {
		_, ok := readProvenance(other)
		require.False(t, ok, other)
	}
}

func TestRetriesHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		c := Retry{MaxAttempts: 3, MinDelay: time.Minute, MaxDelay: time.Hour, MaxAge: 10 * time.Hour, MaxRetryAfter: 2 * time.Hour}
		d := &Delivery{Attempt: 1, FirstFailed: time.Now()}
		delay, dead := c.next(d, failed)
		require.NoError(t, dead)
		require.InDelta(t, time.Minute, delay, float64(12*time.Second))
		delay, dead = c.next(d, RetryAfter(failed, 100*time.Hour))
		require.NoError(t, dead)
		require.Equal(t, 2*time.Hour, delay, "cut to max_retry_after")
		_, dead = c.next(d, Reject(failed))
		require.ErrorIs(t, dead, failed)

		d.Attempt = 3
		_, dead = c.next(d, failed)
		require.EqualError(t, dead, "gave up after 3 attempts: failed")

		c.MaxAttempts = 0
		var asked int
		c.Delay = func(attempt int) time.Duration { asked = attempt; return 5 * time.Hour }
		delay, dead = c.next(d, failed)
		require.NoError(t, dead)
		require.Equal(t, 3, asked)
		require.Equal(t, 5*time.Hour, delay)
		time.Sleep(5*time.Hour + 1)
		_, dead = c.next(d, failed)
		require.EqualError(t, dead, "gave up after 5h0m0s: failed", "the next attempt would be too late")
		c.Delay = func(int) time.Duration { return -1 }
		delay, dead = c.next(d, failed)
		require.NoError(t, dead)
		require.Zero(t, delay)
	})
}

func TestTruncatedCopies(t *testing.T) {
	d := &Delivery{Topic: "t", Attempt: 1, Payload: make([]byte, 5000), Properties: map[string]string{"a": "b"}}
	job := newCopyJob(d, &copyTarget{subscription: "s"}, errors.New("no"), 0)
	size := func(r *Record) int64 { return r.size() }
	original := size(&Record{Payload: d.Payload, Properties: d.Properties})
	require.Greater(t, size(job.record), original)
	require.True(t, job.strip(d))
	require.False(t, job.strip(d), "once")
	require.True(t, job.truncate(d))
	require.LessOrEqual(t, size(job.record), original, "what was stored once is stored again")
	require.Equal(t, "5000", job.record.Properties[PropertyTruncated])
	for before := len(job.record.Payload); before > 0; before = len(job.record.Payload) {
		require.True(t, job.truncate(d))
		require.Less(t, len(job.record.Payload), before)
	}
	require.NotNil(t, job.record.Payload, "an empty payload is not a null one")
	require.False(t, job.truncate(d))
	job.reset(d)
	require.Len(t, job.record.Payload, 5000)
	require.False(t, maps.Equal(job.record.Properties, d.Properties))
	require.NotContains(t, job.record.Properties, PropertyTruncated)
}
