package load

import (
	"cmp"
	"context"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// library is the driver of pkg/messaging.
type library struct {
	client *messaging.Client
	side   workload.Side
}

func newLibrary(ctx context.Context, cluster messaging.Config, t Turn) (Driver, error) {
	client, err := messaging.Dial(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return &library{client, t.Side}, nil
}

// profile returns the side's profile with the settings that the side overrides.
func profile(side workload.Side) messaging.Profile {
	p := messaging.Ops()
	if side.Profile == "business" {
		p = messaging.Business()
	}
	s := side.Publisher
	p.Linger = cmp.Or(time.Duration(s.LingerMs*float64(time.Millisecond)), p.Linger)
	p.BatchRecords = cmp.Or(s.BatchRecords, p.BatchRecords)
	p.BatchBytes = cmp.Or(s.BatchBytes, p.BatchBytes)
	p.MaxPendingRecords = cmp.Or(s.MaxPendingRecords, p.MaxPendingRecords)
	p.Compression = cmp.Or(s.Compression, p.Compression)
	return p
}

func (l *library) Producer(ctx context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	p, err := l.client.Publisher(ctx, topic, profile(l.side))
	return &libraryProducer{p, report, func(_ messaging.MessageID, err error) { report(time.Time{}, err) }}, err
}

func (l *library) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{topic}, subscription
	cfg.Type, cfg.Order = cmp.Or(l.side.Type, cfg.Type), cmp.Or(l.side.Order, cfg.Order)
	cfg.Concurrency = cmp.Or(l.side.Concurrency, cfg.Concurrency)
	consumer, err := l.client.Consumer(cfg)
	if err != nil {
		return err
	}
	return consumer.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
		received(d.Payload)
		return nil
	})
}

func (l *library) Close() { _ = l.client.Close(context.Background()) }

type libraryProducer struct {
	*messaging.Publisher
	report  func(time.Time, error)
	untimed func(messaging.MessageID, error) // shared, so that an untimed message needs no closure
}

func (p *libraryProducer) Send(ctx context.Context, m Message, due time.Time) {
	done := p.untimed
	if !due.IsZero() {
		done = func(_ messaging.MessageID, err error) { p.report(due, err) }
	}
	p.PublishAsync(ctx, &messaging.Record{Key: m.Key, Payload: m.Payload}, done)
}

func (p *libraryProducer) Call(ctx context.Context, m Message) error {
	return p.Publish(ctx, &messaging.Record{Key: m.Key, Payload: m.Payload})
}
