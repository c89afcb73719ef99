package messaging_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// Retries of hours wait at the brokers: they take no place in this process, hold no permits, and
// nobody gets them early, also after a restart.
func TestRetriesOfHoursWaitAtTheBroker(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	for _, kind := range []messaging.SubscriptionType{messaging.Shared, messaging.KeyShared} {
		t.Run(string(kind), func(t *testing.T) {
			topic, retries := srv.Topic(t, ns, 0), srv.Topic(t, ns, 0)
			const n = 300
			publish(t, client, topic, n, false)
			cfg := consumerConfig(topic, kind)
			cfg.Order, cfg.PrefetchMessages = messaging.OrderNone, 20 // far fewer than are parked
			cfg.Retry.Topic, cfg.Retry.MaxAttempts = retries, 0
			var got consumed
			down := func(_ context.Context, d *messaging.Delivery) error {
				got.add(d)
				return messaging.RetryAfter(errors.New("down"), time.Duration(d.Attempt)*2*time.Hour)
			}
			r := start(t, client, cfg, down)
			eventually(t, "all are parked", func() bool {
				return srv.Stats(t, retries).Subscriptions["sub"].MsgBacklog == n &&
					srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog == 0
			})
			r.stop(t)
			require.Len(t, got.snapshot(), n, "one attempt each")

			// The next consumer gets what is new, and nothing of what is parked.
			p := open(t, client, topic, nil)
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Key: "new", Payload: []byte(strconv.Itoa(n))}))
			r = start(t, client, cfg, down)
			eventually(t, "the new one is parked, too", func() bool {
				return srv.Stats(t, retries).Subscriptions["sub"].MsgBacklog == n+1
			})
			sub := srv.Stats(t, retries).Subscriptions["sub"]
			require.Len(t, sub.Consumers, 1)
			require.Zero(t, sub.UnackedMessages, "none is delivered")
			r.stop(t)
			require.Len(t, got.snapshot(), n+1)
			require.EqualValues(t, n+1, srv.Stats(t, retries).Subscriptions["sub"].MsgBacklog)
		})
	}
}

// Dead letters of a partitioned topic go back to their partitions and are handled there.
func TestRedriveOnTheBroker(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	reg := prometheus.NewRegistry()
	client := dial(t, srv.URL(), messaging.WithRegisterer(reg))
	topic := srv.Topic(t, srv.Namespace(t), 3)
	const n = 200
	publish(t, client, topic, n, true)
	cfg := consumerConfig(topic, messaging.Failover)
	r := start(t, client, cfg, func(context.Context, *messaging.Delivery) error { return messaging.Reject(errors.New("never")) })
	dead := topic + "-sub-DLQ"
	eventually(t, "all are dead letters", func() bool {
		return counted(t, reg, "aviary_messaging_handled_messages_total", "sub", "dead_letter") == n
	})
	r.stop(t)

	redrive := messaging.RedriveConfig{
		Topic: dead, Subscription: "sub",
		Filter: func(l *messaging.DeadLetter) bool { return l.Key != "k3" },
	}
	result, err := client.Redrive(testContext(t), redrive)
	require.NoError(t, err)
	left := result.Filtered
	require.Equal(t, messaging.RedriveResult{Redriven: n - left, Filtered: left}, result)
	require.NotZero(t, left)
	require.EqualValues(t, left, srv.Stats(t, dead).Subscriptions["sub"].MsgBacklog, "they stay")

	var got consumed
	r = start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error { got.add(d); return nil })
	eventually(t, "handled", func() bool { return len(got.snapshot()) == n-left })
	r.stop(t)
	for _, d := range got.snapshot() {
		require.Empty(t, d.Properties)
		require.Equal(t, 1, d.Attempt)
	}
	requireInOrderOfKeys(t, got.snapshot())

	redrive.Filter = nil
	result, err = client.Redrive(testContext(t), redrive)
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: left}, result)
	require.Zero(t, srv.Stats(t, dead).Subscriptions["sub"].MsgBacklog)
}

// Encrypted messages in a dead-letter topic stay, for whoever has the key, and are counted.
func TestRedriveLeavesEncryptedMessagesOnTheBroker(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, srv.URL())
	ns := srv.Namespace(t)
	origin, dead := srv.Topic(t, ns, 0), srv.Topic(t, ns, 0)
	require.NoError(t, client.EnsureSubscription(testContext(t), dead, "sub", messaging.StartEarliest))
	raw := rawClient(t, srv.URL())
	plain, secret := producer(t, raw, dead, nil), producer(t, raw, dead, keys(t))
	for _, p := range []pulsar.Producer{secret, plain, secret} {
		_, err := p.Send(testContext(t), &pulsar.ProducerMessage{
			Payload: []byte("x"), Properties: map[string]string{messaging.PropertyAttempts: "1", messaging.PropertyOriginTopic: origin},
		})
		require.NoError(t, err)
	}
	result, err := client.Redrive(testContext(t), messaging.RedriveConfig{Topic: dead, Subscription: "sub"})
	require.NoError(t, err)
	require.Equal(t, messaging.RedriveResult{Redriven: 1, Encrypted: 2}, result)
	require.EqualValues(t, 2, srv.Stats(t, dead).Subscriptions["sub"].MsgBacklog)
}
