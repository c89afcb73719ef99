package clientquirks_test

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

const topic = "persistent://public/default/orders"

// connect makes a client whose options change changes. A broker's answer is awaited for long.
func connect(t *testing.T, url string, change func(*pulsar.ClientOptions)) pulsar.Client {
	t.Helper()
	o := pulsar.ClientOptions{
		URL: url, OperationTimeout: await.Patience, ConnectionTimeout: await.Patience,
		Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	}
	clientquirks.SetClientOptions(&o)
	if change != nil {
		change(&o)
	}
	c, err := pulsar.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func start(t *testing.T, o ...fakebroker.Option) *fakebroker.Server {
	t.Helper()
	s := fakebroker.Start(t, o...)
	s.CreateTopic(topic, 0)
	return s
}

func produce(t *testing.T, c pulsar.Client, change func(*pulsar.ProducerOptions)) pulsar.Producer {
	t.Helper()
	o := pulsar.ProducerOptions{Topic: topic, DisableBatching: true, BackOffPolicyFunc: clientquirks.NewBackoff}
	if change != nil {
		change(&o)
	}
	p, err := c.CreateProducer(o)
	require.NoError(t, err)
	t.Cleanup(func() { clientquirks.CloseProducer(p) })
	return p
}

func subscribe(t *testing.T, c pulsar.Client, change func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	t.Helper()
	o := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "sub", BackOffPolicyFunc: clientquirks.NewBackoff,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	if change != nil {
		change(&o)
	}
	consumer, err := c.Subscribe(o)
	require.NoError(t, err)
	t.Cleanup(consumer.Close)
	return consumer
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func receive(t *testing.T, c pulsar.Consumer) pulsar.Message {
	t.Helper()
	m, err := c.Receive(patient(t))
	require.NoError(t, err)
	return m
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, await.Patience, time.Millisecond, what)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
