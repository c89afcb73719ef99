package retry

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// What a copy adds is taken out again, and nothing else is, however often a message is copied.
func TestOwnPropertiesSurviveCopies(t *testing.T) {
	names := []string{"a", "", record.PropertyReason, record.PropertyAttempts, record.PropertySubscription, "aviary_", "aviary_tenant", record.PropertyEscape,
		record.PropertyEscape + record.PropertyReason, record.PropertyEscape + "a", record.PropertyEscape + record.PropertyEscape + "x"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		own := make(map[string]string)
		for range random.IntN(len(names)) {
			name := names[random.IntN(len(names))]
			own[name] = name + "!"
		}
		marks := record.Provenance{Attempts: 3, Topic: "t", Reason: "because", Subscription: "s", Truncated: 7, Due: time.Now()}.Marks(random.IntN(2) == 0)
		once := record.Escape(own, marks)
		twice := record.Escape(once, marks)
		p, ok := record.ReadProvenance(once)
		require.True(t, ok)
		require.Equal(t, "because", p.Reason)
		require.Equal(t, once, record.Unescape(twice))
		if len(own) == 0 {
			require.Nil(t, record.Unescape(once))
			continue
		}
		require.Equal(t, own, record.Unescape(once))
	}
}

func TestProvenanceIsReadAsWritten(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	p := record.Provenance{
		Attempts: 3, Reason: "because", FirstFailed: at, Due: at.Add(1), Subscription: "s", Truncated: 7, Empty: true,
		Topic: "persistent://a/b/c-partition-1", PublishTime: at.Add(2), Producer: "p", ReplicatedFrom: "west",
	}
	got, ok := record.ReadProvenance(p.Marks(false))
	require.True(t, ok)
	require.Equal(t, p, got)

	p.Reason = strings.Repeat("ä", 2*record.ReasonBytes)
	whole, bare := p.Marks(false), p.Marks(true)
	require.Len(t, whole[record.PropertyReason], record.ReasonBytes)
	require.Len(t, bare[record.PropertyReason], record.BareReasonBytes)
	require.NotContains(t, bare, record.PropertyOriginProducer)
	for _, other := range []map[string]string{nil, {"a": "b"}, {record.PropertyAttempts: "3"}, {record.PropertyAttempts: "x", record.PropertyOriginTopic: "t"}} {
		_, ok := record.ReadProvenance(other)
		require.False(t, ok, other)
	}
}

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
