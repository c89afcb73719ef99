// Package pulsar puts messages on topics of Pulsar and reads them, for tests, benchmarks and the
// demo.
package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// closeTimeout bounds the end of a client, whose context has mostly ended by then.
const closeTimeout = time.Minute

// With opens a client for as long as do takes.
func With(ctx context.Context, url string, do func(*messaging.Client) error) error {
	cluster := messaging.DefaultConfig()
	cluster.URL = url
	client, err := messaging.Dial(ctx, cluster)
	if err != nil {
		return err
	}
	err = do(client)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, client.Close(closing))
}

// Publish returns when a topic has stored all records.
func Publish(ctx context.Context, url, topic string, records ...*messaging.Record) error {
	return With(ctx, url, func(client *messaging.Client) error {
		publisher, err := client.Publisher(ctx, topic, messaging.Ops())
		if err != nil {
			return err
		}
		return publisher.Publish(ctx, records...)
	})
}

// Read calls got with each message of a topic from its beginning, and with those that come, in the
// order of each partition, until ctx ends. The subscription remembers what was read.
func Read(ctx context.Context, url, topic, subscription string, got func(*messaging.Delivery)) error {
	err := With(ctx, url, func(client *messaging.Client) error {
		cfg := messaging.DefaultConsumerConfig()
		cfg.Topics, cfg.Subscription = []string{topic}, subscription
		cfg.Type, cfg.Order, cfg.Concurrency = messaging.Exclusive, messaging.OrderTotal, 1
		cfg.AckBatchIndex = true
		consumer, err := client.Consumer(cfg)
		if err != nil {
			return err
		}
		return consumer.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
			got(d)
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", topic, err)
	}
	return nil
}

// ReadStored calls got with each message that a topic holds now, in the order of each partition.
func ReadStored(ctx context.Context, url string, cfg messaging.ReaderConfig, got func(*messaging.Delivery) error) error {
	err := With(ctx, url, func(client *messaging.Client) error {
		r, err := client.Reader(ctx, cfg)
		if err != nil {
			return err
		}
		_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error { return got(d) })
		return errors.Join(err, r.Close(ctx))
	})
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", cfg.Topic, err)
	}
	return nil
}
