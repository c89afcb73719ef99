package record

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Reading a copy removes the properties that the copy added, and no others, after any number of
// copies.
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
		marks := Provenance{Attempts: 3, Topic: "t", Reason: "because", Subscription: "s", Truncated: 7, Due: time.Now()}.Marks(random.IntN(2) == 0)
		once := Escape(own, marks)
		twice := Escape(once, marks)
		p, ok := ReadProvenance(once)
		require.True(t, ok)
		require.Equal(t, "because", p.Reason)
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
	p := Provenance{
		Attempts: 3, Reason: "because", FirstFailed: at, Due: at.Add(1), Subscription: "s", Truncated: 7, Empty: true,
		Topic: "persistent://a/b/c-partition-1", PublishTime: at.Add(2), Producer: "p", ReplicatedFrom: "west",
	}
	got, ok := ReadProvenance(p.Marks(false))
	require.True(t, ok)
	require.Equal(t, p, got)

	p.Reason = strings.Repeat("ä", 2*reasonBytes)
	whole, bare := p.Marks(false), p.Marks(true)
	require.Len(t, whole[PropertyReason], reasonBytes)
	require.Len(t, bare[PropertyReason], bareReasonBytes)
	require.NotContains(t, bare, PropertyOriginProducer)
	for _, other := range []map[string]string{nil, {"a": "b"}, {PropertyAttempts: "3"}, {PropertyAttempts: "x", PropertyOriginTopic: "t"}} {
		_, ok := ReadProvenance(other)
		require.False(t, ok, other)
	}
}
