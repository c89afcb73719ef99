package messaging_test

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// TestTryCreatesNothing on a broker that creates topics that are missing, and sees what is there.
func TestTryCreatesNothing(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	require.NoError(t, m.client.TryConnect(ctx))
	for name, try := range map[string]func(context.Context, string) error{"publish": m.client.TryPublish, "consume": m.client.TryConsume} {
		require.NoError(t, try(ctx, m.Name()), name)
		require.NoError(t, try(ctx, m.srv.Topic(t, m.ns, 3)), name)
		missing := "persistent://" + m.ns + "/missing"
		require.ErrorIs(t, try(ctx, missing), messaging.ErrTopicNotFound, name)
		exists, err := m.client.Topic(missing).Exists(ctx)
		require.NoError(t, err)
		require.False(t, exists, name)
		err = try(ctx, "persistent://public/no-such-namespace/x")
		require.ErrorIs(t, err, messaging.ErrTopicNotFound, name)
		require.ErrorIs(t, err, messaging.ErrNamespaceNotFound, name)
		require.ErrorIs(t, try(ctx, "a/b"), messaging.ErrInvalidTopic, name)
	}
	subscriptions, err := m.Subscriptions(ctx)
	require.NoError(t, err)
	require.Empty(t, subscriptions)
	require.Empty(t, m.srv.Stats(t, m.Name()).Publishers)
}

// TestTryPublishLeavesTheOwner undisturbed.
func TestTryPublishLeavesTheOwner(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	owner := open(t, m.client, m.Name(), func(p *messaging.Profile) { p.Ownership = messaging.ExclusiveOwnership })
	require.ErrorIs(t, m.client.TryPublish(ctx, m.Name()), messaging.ErrOwned)
	require.NoError(t, owner.Publish(ctx, record(1)))
	require.NoError(t, owner.Owned().Err())

	m.srv.Terminate(t, m.Name())
	require.NoError(t, owner.Close(ctx))
	require.ErrorIs(t, m.client.TryPublish(ctx, m.Name()), messaging.ErrTopicTerminated)
}

// TestTrySaysWhatIsUnavailable at once.
func TestTrySaysWhatIsUnavailable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	unreachable := l.Addr().String()
	c := dial(t, "pulsar://"+unreachable)
	ctx, cancel := context.WithCancel(testContext(t))
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := l.Accept(); err == nil {
			accepted <- conn
			cancel() // it answers nothing
		}
	}()
	require.ErrorIs(t, c.TryConnect(ctx), context.Canceled)
	require.NoError(t, (<-accepted).Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, c.TryConnect(testContext(t)), syscall.ECONNREFUSED)
	require.ErrorIs(t, c.TryPublish(testContext(t), "x"), syscall.ECONNREFUSED)
	require.NoError(t, c.Close(testContext(t)))
	require.ErrorIs(t, c.TryConnect(testContext(t)), messaging.ErrClosed)

	s := fakebroker.Start(t) // which does not say that it can tell
	s.CreateTopic("x", 0)
	c = dial(t, s.URL())
	require.NoError(t, c.TryConnect(testContext(t)))
	err = c.TryPublish(testContext(t), "x")
	require.ErrorIs(t, err, messaging.ErrNoAdminURL)
	assert.NotErrorIs(t, err, messaging.ErrTopicNotFound)
}
