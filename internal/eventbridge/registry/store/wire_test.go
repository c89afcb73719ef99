package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// wired is a store with the bus orders at a broker that a test tells what to do.
func wired(t *testing.T) (m member, s *fakebroker.Server, topic string) {
	t.Helper()
	s = fakebroker.Start(t)
	w := fixture{topics: model.Topics{Namespace: "public/default"}, url: s.URL()}
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL(), OperationTimeout: eventually})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(testContext(t)) })
	m = w.openWith(t, client, store.Options{Instance: "a"})
	putBus(t, m, "orders")
	return m, s, w.topics.Registry()
}

// another opens a further store at the broker.
func another(t *testing.T, s *fakebroker.Server, opts store.Options) member {
	t.Helper()
	w := fixture{topics: model.Topics{Namespace: "public/default"}, url: s.URL()}
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL(), OperationTimeout: eventually})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(testContext(t)) })
	return w.openWith(t, client, opts)
}

// heldChange makes a change, and returns when its record is held back behind the fence.
func heldChange(ctx context.Context, t *testing.T, m member, s *fakebroker.Server, hold *fakebroker.Hold) <-chan error {
	t.Helper()
	outcome := make(chan error, 1)
	go func() {
		_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{New: true})
		outcome <- err
	}()
	require.NoError(t, s.Until(testContext(t), func() bool { return hold.Held() == 1 }))
	require.Equal(t, 1, hold.ReleaseNext(1), "the fence")
	require.NoError(t, s.Until(testContext(t), func() bool { return hold.Held() == 1 }))
	return outcome
}

// The connection breaks when the broker has stored the change and not said so: the store finds it
// in the topic, and does not hold its own condition against it.
func TestAChangeThatWasStoredWithoutAReceiptIsFound(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	hold := s.HoldReceipts(topic)
	outcome := heldChange(testContext(t), t, m, s, hold)
	hold.Forget()
	hold.Release()
	s.CutConnections()
	require.NoError(t, <-outcome)
	require.EqualValues(t, 2, m.Snapshot().Revision(), "it was stored once")
	require.EqualValues(t, 2, m.Snapshot().Subscriber("orders", "mail").Revision)
}

// The connection breaks before the broker has stored the change: it is made again.
func TestAChangeThatWasLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	hold := s.HoldEntries(topic)
	outcome := heldChange(testContext(t), t, m, s, hold)
	hold.Forget()
	hold.Release()
	s.CutConnections()
	require.NoError(t, <-outcome)
	require.EqualValues(t, 2, m.Snapshot().Revision())
}

// The broker cannot be reached any more and has not said whether it stored the change: neither does
// the store.
func TestWhatIsNotKnownIsSaid(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	hold := s.HoldEntries(topic)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	outcome := heldChange(ctx, t, m, s, hold)
	s.RefuseConnections(true)
	s.CutConnections()
	require.Eventually(t, func() bool { return m.Check(testContext(t)) != nil }, eventually, tick)
	cancel() // whoever asked waits no longer
	require.ErrorIs(t, <-outcome, model.ErrUnknown)
	hold.Release()
	s.RefuseConnections(false)
	_, created, err := m.PutSubscriber(testContext(t), aSubscriber("orders", "mail"), store.Condition{New: true})
	require.NoError(t, err)
	require.True(t, created, "it was not stored")
}

// Nothing can be written, not even a fence: nothing was changed.
func TestNothingIsChangedDuringAnOutage(t *testing.T) {
	t.Parallel()
	m, s, topic := wired(t)
	s.RefuseConnections(true)
	s.CutConnections()
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	before := s.Count(topic)
	_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, before, s.Count(topic))
	require.Eventually(t, func() bool { return m.Check(testContext(t)) != nil }, eventually, tick)
	require.NotNil(t, m.Snapshot().Bus("orders"), "what was read stays")
	s.RefuseConnections(false)
	_, _, err = m.PutSubscriber(testContext(t), aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.NoError(t, m.Check(testContext(t)))
}
