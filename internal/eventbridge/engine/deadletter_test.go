package engine

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/wire"
)

// newBurier is one of a subscriber s of an engine on server.
func newDeadLetterWriter(t *testing.T, server *wire.Server, cfg Config) *deadLetterWriter {
	t.Helper()
	log := zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
	client, err := messaging.Dial(t.Context(), messaging.Config{URL: server.URL()}, messaging.WithLogger(log))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		assert.NoError(t, client.Close(ctx))
	})
	s := newSubscriber("s", model.OrderNone, `{"type":["a"]}`)
	s.Bus, s.UID = busName, "u-s"
	metrics := NewMetrics(prometheus.NewRegistry())
	e := New(Options{Client: client, Topics: model.Topics{Namespace: "public/default"}, Config: cfg, Log: log, Metrics: metrics})
	return &deadLetterWriter{engine: e, subscriber: &s, log: log, metrics: metrics.of(busName)}
}

// A dead-letter topic that was unavailable is open from when it is there again, also when nothing
// was to be stored meanwhile: brokers that are unavailable twice, and back in between for less than
// it takes to open the send topic, make no dead letters.
func TestADeadLetterTopicThatWasUnavailableIsOpenFromThenOn(t *testing.T) {
	t.Parallel()
	server := wire.Start(t)
	b := newDeadLetterWriter(t, server, DefaultConfig())
	t.Cleanup(b.close)
	since, err := b.open(t.Context())
	require.NoError(t, err)
	again, err := b.open(t.Context())
	require.NoError(t, err)
	require.Equal(t, since, again, "it is open")
	server.RefuseConnections(true)
	server.CutConnections()
	noticed := func() bool {
		cut, connecting := b.publisher.LastDisconnect()
		return connecting || cut.After(since)
	}
	require.Eventually(t, noticed, await.Patience, time.Millisecond)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := b.open(ctx)
		require.Error(t, err, "it is unavailable, and at first may be")
		return b.publisher == nil // the client knows it after two seconds
	}, await.Patience, 10*time.Millisecond)
	back := time.Now()
	server.RefuseConnections(false)
	require.Eventually(t, func() bool { // the sendQueue asks again, too
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		since, err = b.open(ctx)
		return err == nil
	}, await.Patience, 10*time.Millisecond)
	require.True(t, since.After(back))
}

// A send topic that no broker serves has the client end the connection at each look
// ("ServiceNotReady"), which is that of the dead-letter topic, too. That is there again at once: it
// is no outage of the brokers, and copies become dead letters.
func TestTriesThatEndConnectionsHinderNoDeadLetters(t *testing.T) {
	t.Parallel()
	server := wire.Start(t)
	cfg := DefaultConfig()
	cfg.StallAfter = time.Second
	b := newDeadLetterWriter(t, server, cfg)
	server.FailLookup(b.engine.topics.Send(b.subscriber), wire.ServiceNotReady, -1)
	l, end := newFakeSendQueue(t, nil, model.OrderNone)
	l.cfg, l.deadLetters = cfg, b
	l.open = func(ctx context.Context) (topicWriter, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return b.engine.openPublisher(ctx, b.subscriber)
	}
	m, finished := added(l, 1, "k")
	require.True(t, l.add(t.Context(), entry{position: 1, of: m, size: 10, record: &messaging.Record{Properties: map[string]string{"rules": "r0"}}}))
	assert.Eventually(t, finished, 2*await.Patience, 10*time.Millisecond) // it opens topics for up to openTimeout several times
	assert.Equal(t, 1, server.Count(b.engine.topics.DeadLetter(b.subscriber)))
	end()
	l.working.Wait()
}
