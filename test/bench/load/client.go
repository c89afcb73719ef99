package load

import (
	"context"
	"errors"
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
	auth, err := authentication(cluster.Auth)
	if err != nil {
		return nil, err
	}
	c, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: cluster.URL, ListenerName: cluster.ListenerName, ConnectionTimeout: cluster.ConnectTimeout, MemoryLimitBytes: -1,
		TLSTrustCertsFilePath: cluster.TLS.CAFile, TLSAllowInsecureConnection: cluster.TLS.Insecure, TLSValidateHostname: !cluster.TLS.Insecure,
		Authentication: auth, Logger: pulsarlog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	})
	return &client{c, t.Side, max(profile(t.Side).MaxPendingRecords/max(t.Workload.PartitionsPerTopic, 1), 1)}, err
}

// authentication converts the credentials of the configuration; nil without credentials.
func authentication(c messaging.Auth) (pulsar.Authentication, error) {
	switch {
	case c.Token != "":
		return pulsar.NewAuthenticationToken(strings.TrimSpace(c.Token.Reveal())), nil
	case c.TokenFile != "":
		return pulsar.NewAuthenticationTokenFromFile(c.TokenFile), nil
	case c.CertFile != "":
		return pulsar.NewAuthenticationTLS(c.CertFile, c.KeyFile), nil
	case c.OAuth2 != (messaging.OAuth2{}):
		return nil, errors.New("pulsar.auth.oauth2: the driver client does not support it: use a token")
	}
	return nil, nil
}

func (c *client) Producer(_ context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	o := producerOptions(topic, c.side)
	o.MaxPendingMessages = c.pending
	p, err := c.client.CreateProducer(o)
	return &clientProducer{p, report, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { report(time.Time{}, err) }}, err
}

// producerOptions converts the settings of the library's profile to options of the client.
func producerOptions(topic string, side workload.Side) pulsar.ProducerOptions {
	p := profile(side)
	compression := pulsar.LZ4
	switch p.Compression {
	case messaging.NoCompression:
		compression = pulsar.NoCompression
	case messaging.ZSTD:
		compression = pulsar.ZSTD
	}
	return pulsar.ProducerOptions{
		Topic: topic, SendTimeout: -1, BatchingMaxPublishDelay: max(p.Linger, time.Millisecond), CompressionType: compression,
		BatchingMaxMessages: uint(p.BatchRecords), BatchingMaxSize: uint(p.BatchBytes), DisableBatching: p.BatchRecords == 1,
	}
}

func (c *client) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	consumer, err := c.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: clientType(c.side.Type), SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
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

func clientType(t messaging.SubscriptionType) pulsar.SubscriptionType {
	switch t {
	case messaging.Exclusive:
		return pulsar.Exclusive
	case messaging.Failover:
		return pulsar.Failover
	case messaging.KeyShared:
		return pulsar.KeyShared
	default:
		return pulsar.Shared
	}
}

func (c *client) Figures() map[string]float64 { return nil }

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
