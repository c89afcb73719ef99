package load

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// client is the driver of pulsar-client-go without the library.
type client struct {
	client  pulsar.Client
	side    workload.Side
	pending int // of each partition
}

func newClient(_ context.Context, cluster messaging.Config, t Turn) (Driver, error) {
	var auth pulsar.Authentication
	switch a := cluster.Auth; {
	case a.Token != "":
		auth = pulsar.NewAuthenticationToken(strings.TrimSpace(a.Token.Reveal()))
	case a.TokenFile != "":
		auth = pulsar.NewAuthenticationTokenFromFile(a.TokenFile)
	case a.CertFile != "":
		auth = pulsar.NewAuthenticationTLS(a.CertFile, a.KeyFile)
	}
	c, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: cluster.URL, ListenerName: cluster.ListenerName, ConnectionTimeout: cluster.ConnectTimeout, MemoryLimitBytes: -1,
		TLSTrustCertsFilePath: cluster.TLS.CAFile, TLSAllowInsecureConnection: cluster.TLS.Insecure,
		TLSValidateHostname: !cluster.TLS.Insecure, Authentication: auth, Logger: pulsarlog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	})
	return &client{c, t.Side, max(profile(t.Side).MaxPendingRecords/max(t.Workload.PartitionsPerTopic, 1), 1)}, err
}

// Producer opens a producer with the settings of the library's profile.
func (c *client) Producer(_ context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	p := profile(c.side)
	compression := map[messaging.Compression]pulsar.CompressionType{messaging.LZ4: pulsar.LZ4, messaging.ZSTD: pulsar.ZSTD}
	producer, err := c.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, SendTimeout: -1, MaxPendingMessages: c.pending, BatchingMaxPublishDelay: max(p.Linger, time.Millisecond),
		BatchingMaxMessages: uint(p.BatchRecords), BatchingMaxSize: uint(p.BatchBytes), DisableBatching: p.BatchRecords == 1,
		CompressionType: compression[p.Compression],
	})
	untimed := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { report(time.Time{}, err) }
	return &clientProducer{producer, report, untimed}, err
}

func (c *client) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	types := map[messaging.SubscriptionType]pulsar.SubscriptionType{
		messaging.Shared: pulsar.Shared, messaging.KeyShared: pulsar.KeyShared,
		messaging.Exclusive: pulsar.Exclusive, messaging.Failover: pulsar.Failover,
	}
	consumer, err := c.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Type: types[cmp.Or(c.side.Type, messaging.Shared)],
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	for {
		m, err := consumer.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		received(m.Payload())
		if err := consumer.Ack(m); err != nil {
			return err
		}
	}
}

func (c *client) Close() { c.client.Close() }

type clientProducer struct {
	pulsar.Producer
	report  func(time.Time, error)
	untimed func(pulsar.MessageID, *pulsar.ProducerMessage, error)
}

func (p *clientProducer) Send(ctx context.Context, m Message, due time.Time) {
	done := p.untimed
	if !due.IsZero() {
		done = func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { p.report(due, err) }
	}
	p.SendAsync(ctx, &pulsar.ProducerMessage{Key: m.Key, Payload: m.Payload}, done)
}

func (p *clientProducer) Call(ctx context.Context, m Message) error {
	_, err := p.Producer.Send(ctx, &pulsar.ProducerMessage{Key: m.Key, Payload: m.Payload})
	return err
}

func (p *clientProducer) Flush(ctx context.Context) error { return p.FlushWithCtx(ctx) }
