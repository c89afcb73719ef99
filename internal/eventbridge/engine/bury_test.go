package engine

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/test/stack"
)

// A dead-letter topic that was away is open from when it is there again, also when nothing was to be stored meanwhile: brokers that are away twice, and back in between
// for less than it takes to open the send topic, make no dead letters.
func TestADeadLetterTopicThatWasAwayIsOpenFromThenOn(t *testing.T) {
	server := stack.Pulsar(t)
	w := newWorld(t, server, 1, newSubscriber("s", registry.OrderNone, `{"type":["a"]}`))
	e := New(Options{Client: w.client, Source: w.store, Topics: w.topics, Config: testConfig(), Log: zaptest.NewLogger(t), Metrics: NewMetrics(prometheus.NewRegistry())})
	b := &burier{engine: e, subscriber: w.sub("s"), log: zaptest.NewLogger(t)}
	t.Cleanup(b.close)
	open := func() time.Time {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		since, err := b.open(ctx)
		require.NoError(t, err)
		return since
	}
	since := open()
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, since, open(), "it is open")
	away := time.Now()
	server.Unload(t, w.topics.DeadLetter(w.sub("s")))
	require.Eventually(t, func() bool { return open().After(away) }, 10*time.Second, 50*time.Millisecond)
}
