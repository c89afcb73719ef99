package messaging_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

const askedByReach = "persistent://public/default/aviary-reach-partition-0"

// TestReachWaitsForAnAnswer: not while no broker takes connections, nor while one is not ready.
func TestReachWaitsForAnAnswer(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.RefuseConnections(true)
	notReady := s.Fail(fakebroker.OpPartitions, askedByReach, fakebroker.ServiceNotReady, 2)
	c := dial(t, s.URL())
	reached := make(chan error, 1)
	go func() { reached <- c.Reach(testContext(t)) }()
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	require.ErrorIs(t, c.Reach(ctx), context.Canceled)
	select {
	case err := <-reached:
		t.Fatalf("Reach returned %v while nobody answered", err)
	default:
	}
	s.RefuseConnections(false)
	require.NoError(t, <-reached)
	require.Equal(t, 2, notReady.Hits())
	require.NoError(t, c.Reach(testContext(t)), "again")
}

// TestReachTakesARefusalForAnAnswer: what a client may do is another question.
func TestReachTakesARefusalForAnAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []fakebroker.ServerError{fakebroker.AuthorizationError, fakebroker.TopicNotFound, fakebroker.NotAllowedError} {
		s := fakebroker.Start(t)
		s.Fail(fakebroker.OpPartitions, askedByReach, code, 1)
		require.NoError(t, dial(t, s.URL()).Reach(testContext(t)), code)
	}
}

// TestReachEndsWithTheClient, also while a broker owes an answer.
func TestReachEndsWithTheClient(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.Ignore(fakebroker.OpPartitions, askedByReach, 1)
	c := dial(t, s.URL())
	reached := make(chan error, 1)
	go func() { reached <- c.Reach(testContext(t)) }()
	require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandPartitionedMetadata, 1))
	require.NoError(t, c.Close(testContext(t)), "without waiting for an answer")
	require.ErrorIs(t, <-reached, messaging.ErrClosed)
}

// TestReachCreatesNothing on a broker that creates topics that are missing.
func TestReachCreatesNothing(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	require.NoError(t, m.client.Reach(ctx))
	for _, name := range []string{"persistent://public/default/aviary-reach", askedByReach} {
		exists, err := m.client.Topic(name).Exists(ctx)
		require.NoError(t, err)
		require.False(t, exists, name)
	}
}
