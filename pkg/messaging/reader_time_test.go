package messaging_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestReaderFromATimeMissesNothing: a broker that has something in flight for a reader while that
// seeks begins behind that, after the seek. It reads ledger by ledger, and from the store at first.
func TestReaderFromATimeMissesNothing(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	topic := srv.Topic(t, srv.Namespace(t), 0)
	client := dial(t, srv.URL())
	before := time.Now().Add(-time.Minute)
	var between time.Time
	const ledgers, each = 4, 40
	for ledger := range ledgers {
		p, err := client.Publisher(ctx, topic, messaging.Business())
		require.NoError(t, err)
		if ledger == 2 {
			between = afterNow(t)
		}
		for i := range each {
			require.NoError(t, p.Publish(ctx, record(ledger*each+i)))
		}
		require.NoError(t, p.Close(ctx))
		srv.Unload(t, topic)
	}
	rounds := 8
	if soak() {
		rounds = 60
	}
	for round := range rounds {
		for at, want := range map[time.Time]int{before: ledgers * each, between: 2 * each} {
			srv.Unload(t, topic)
			from := messaging.AtTime(at)
			r, err := client.Reader(ctx, messaging.ReaderConfig{Topic: topic, From: &from, PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10})
			require.NoError(t, err)
			got := toEnd(t, r)
			require.NoError(t, r.Close(ctx))
			require.Len(t, got, want, "round %d", round)
		}
	}
}
