package messaging_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTopicIsCreatedAndDeleted(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	for name, partitions := range map[string]int{"plain": 0, "one": 1, "three": 3} {
		t.Run(name, func(t *testing.T) {
			topic := m.client.Topic("persistent://" + m.ns + "/" + name)
			exists, err := topic.Exists(ctx)
			require.NoError(t, err)
			require.False(t, exists)
			require.ErrorIs(t, topic.Delete(ctx), messaging.ErrNotFound)
			require.NoError(t, topic.Create(ctx, partitions))
			require.NoError(t, topic.Create(ctx, partitions), "it is there as asked for")
			err = topic.Create(ctx, 2)
			require.ErrorIs(t, err, messaging.ErrExists)
			require.ErrorContains(t, err, "not 2 partitions")
			exists, err = topic.Exists(ctx)
			require.NoError(t, err)
			require.True(t, exists)
			n, err := topic.Partitions(ctx)
			require.NoError(t, err)
			require.Equal(t, partitions, n)
			names, err := m.client.Partitions(ctx, topic.Name())
			require.NoError(t, err)
			require.Len(t, names, max(partitions, 1))

			p := open(t, m.client, topic.Name(), nil)
			require.NoError(t, p.Publish(ctx, record(1)))
			require.ErrorIs(t, topic.Delete(ctx), messaging.ErrBusy)
			require.NoError(t, p.Close(ctx))
			require.NoError(t, topic.Delete(ctx))
			exists, err = topic.Exists(ctx)
			require.NoError(t, err)
			require.False(t, exists)
		})
	}
	require.ErrorContains(t, m.client.Topic("persistent://"+m.ns+"/x").Create(ctx, -1), "must be >= 0")
	require.ErrorContains(t, m.client.Topic("non-persistent://"+m.ns+"/x").Create(ctx, 1), "must be the name of a persistent topic")
	require.Equal(t, "persistent://public/default/x", m.client.Topic("x").Name())
}

// compact compacts the topic, and waits for that. On a busy machine a broker may lose its
// connection to itself: then it is told again. Any other failure is one.
func (m managed) compact(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	require.NoError(t, m.Compact(ctx))
	eventually(t, "compacted", func() bool {
		state, reason, err := m.Compaction(ctx)
		require.NoError(t, err)
		if state == messaging.CompactionFailed {
			cutOff := strings.Contains(reason, "ConnectException") || strings.Contains(reason, "Disconnected from server")
			require.True(t, cutOff, reason)
			require.NoError(t, m.Compact(ctx))
		}
		return state == messaging.CompactionDone
	})
}

func TestCompactionLeavesTheNewestOfEachKey(t *testing.T) {
	t.Parallel()
	for name, partitions := range map[string]int{"plain": 0, "partitioned": 2} {
		t.Run(name, func(t *testing.T) {
			m := newManaged(t, partitions)
			ctx := testContext(t)
			require.NoError(t, m.Subscription("before").Create(ctx, messaging.Earliest()))
			m.publish(t, 0, 69) // seven keys
			state, _, err := m.Compaction(ctx)
			require.NoError(t, err)
			require.Equal(t, messaging.CompactionNotRun, state)
			m.compact(t)
			cfg := consumerConfig(m.Name(), messaging.Exclusive)
			cfg.Subscription, cfg.ReadCompacted, cfg.Order = "compacted", true, messaging.OrderTotal
			c, err := m.client.Consumer(cfg)
			require.NoError(t, err)
			var got []string
			_, err = c.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
				got = append(got, string(d.Payload))
				return nil
			})
			require.NoError(t, err)
			require.ElementsMatch(t, recordTexts(63, 69), got)
			n, err := m.Subscription("before").Backlog(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 70, n, "the messages themselves stay")
		})
	}
	m := newManaged(t, 0)
	none := m.client.Topic(m.Name() + "-none")
	require.ErrorIs(t, none.Compact(testContext(t)), messaging.ErrNotFound)
	_, _, err := none.Compaction(testContext(t))
	require.ErrorIs(t, err, messaging.ErrNotFound)
}

func TestRetentionOfANamespace(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	ns := m.client.Namespace(m.ns)
	require.NoError(t, m.srv.Admin(ctx, http.MethodDelete, "/admin/v2/namespaces/"+m.ns+"/retention", nil, nil))
	_, set, err := ns.Retention(ctx)
	require.NoError(t, err)
	require.False(t, set)
	for _, r := range []messaging.Retention{
		{Time: 90 * time.Minute, Size: 64 << 20},
		{Time: messaging.Unlimited, Size: 1 << 20},
		{Time: time.Hour, Size: messaging.Unlimited},
		{},
	} {
		require.NoError(t, ns.SetRetention(ctx, r))
		got, set, err := ns.Retention(ctx)
		require.NoError(t, err)
		require.True(t, set)
		require.Equal(t, r, got)
	}
	require.NoError(t, ns.SetRetention(ctx, messaging.Retention{Time: time.Minute + 1, Size: 1}))
	got, _, err := ns.Retention(ctx)
	require.NoError(t, err)
	require.Equal(t, messaging.Retention{Time: 2 * time.Minute, Size: 1 << 20}, got, "rounded up")
	require.ErrorContains(t, ns.SetRetention(ctx, messaging.Retention{Time: -2, Size: 1}), "Unlimited")
	require.ErrorContains(t, ns.SetRetention(ctx, messaging.Retention{Time: time.Hour}), "either both")
	_, _, err = m.client.Namespace("public/no-such-namespace").Retention(ctx)
	require.ErrorIs(t, err, messaging.ErrNotFound)
}

func TestDeduplicationOfANamespace(t *testing.T) {
	t.Parallel()
	m := newManaged(t, 0)
	ctx := testContext(t)
	ns := m.client.Namespace(m.ns)
	_, set, err := ns.Deduplication(ctx)
	require.NoError(t, err)
	require.False(t, set)
	for _, want := range []bool{true, false} {
		require.NoError(t, ns.SetDeduplication(ctx, want))
		on, set, err := ns.Deduplication(ctx)
		require.NoError(t, err)
		require.True(t, set)
		require.Equal(t, want, on)
	}
	require.ErrorIs(t, m.client.Namespace("public/no-such-namespace").SetDeduplication(ctx, true), messaging.ErrNotFound)
	require.ErrorContains(t, m.client.Namespace(strings.TrimPrefix(m.ns, "public")).SetDeduplication(ctx, true), "must be tenant/namespace")
}
