package messaging_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

// The subscription is there, without a consumer, on each partition, and keeps what comes.
func TestEnsureSubscription(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	ns, ctx := srv.Namespace(t), testContext(t)
	for name, partitions := range map[string]int{"plain": 0, "three": 3, "missing": -1} {
		t.Run(name, func(t *testing.T) {
			topic := client.Topic("persistent://" + ns + "/" + name)
			if partitions >= 0 {
				require.NoError(t, topic.Create(ctx, partitions))
			}
			p := open(t, client, topic.Name(), nil)
			for i := range 6 {
				require.NoError(t, p.Publish(ctx, record(i)))
			}
			for range 2 { // it may be there already
				require.NoError(t, client.EnsureSubscription(ctx, topic.Name(), "all", messaging.StartEarliest))
				require.NoError(t, client.EnsureSubscription(ctx, topic.Name(), "later", messaging.StartLatest))
			}
			for i := range 6 {
				require.NoError(t, p.Publish(ctx, record(i)))
			}
			for subscription, want := range map[string]int64{"all": 12, "later": 6} {
				backlog, err := topic.Subscription(subscription).Backlog(ctx)
				require.NoError(t, err)
				require.Equal(t, want, backlog, subscription)
				require.NoError(t, topic.Subscription(subscription).Delete(ctx), "nobody is connected to it")
			}
		})
	}
}

// Consumers that have the subscription, whatever its kind, stay.
func TestEnsureSubscriptionLeavesConsumersAlone(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Shared, messaging.KeyShared, messaging.Failover, messaging.Exclusive} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			client := dial(t, s.URL())
			cfg := messaging.DefaultConsumerConfig()
			cfg.Topics, cfg.Subscription, cfg.Type = []string{topic}, "sub", kind
			consumer, err := client.Consumer(cfg)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(testContext(t))
			got, ended := make(chan string, 10), make(chan error, 1)
			go func() {
				ended <- consumer.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
					got <- string(d.Payload)
					return nil
				})
			}()
			require.NoError(t, s.WaitConsumers(ctx, topic, "sub", 1))
			require.NoError(t, client.EnsureSubscription(ctx, topic, "sub", messaging.StartEarliest))
			require.NoError(t, open(t, client, topic, nil).Publish(ctx, record(1)))
			require.Equal(t, "1", <-got)
			cancel()
			<-ended
		})
	}
}

func TestEnsureSubscriptionRefuses(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	ctx := testContext(t)
	require.ErrorContains(t, client.EnsureSubscription(ctx, topic, "", messaging.StartEarliest), "must have a name")
	require.ErrorIs(t, client.EnsureSubscription(ctx, "a/b", "sub", messaging.StartEarliest), messaging.ErrInvalidTopic)
	require.ErrorContains(t, client.EnsureSubscription(ctx, "non-persistent://public/default/a", "sub", ""), "keeps nothing")
	require.ErrorContains(t, client.EnsureSubscription(ctx, topic, "sub", "middle"), `must begin at earliest or latest, got "middle"`)
	s.FailSubscribe(topic, fakebroker.AuthorizationError, 1)
	require.ErrorContains(t, client.EnsureSubscription(ctx, topic, "sub", ""), "subscription sub of "+topic)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, client.EnsureSubscription(ended, topic, "sub", ""), context.Canceled)
	require.NoError(t, client.Close(ctx))
	require.ErrorIs(t, client.EnsureSubscription(ctx, topic, "sub", ""), messaging.ErrClosed)
}
