package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// readTopic calls handle with every message of a topic, from its beginning and in
// the order of each partition, until ctx ends.
func readTopic(ctx context.Context, url, topic string, handle func(*messaging.Delivery)) error {
	cluster := messaging.DefaultConfig()
	cluster.URL = url
	client, err := messaging.Dial(ctx, cluster)
	if err != nil {
		return err
	}
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{topic}, "demo"
	cfg.Type, cfg.Order = messaging.Exclusive, messaging.OrderTotal
	consumer, err := client.Consumer(cfg)
	if err != nil {
		return err
	}
	err = consumer.Run(ctx, func(_ context.Context, d *messaging.Delivery) error {
		handle(d)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("cannot read %s: %w", topic, err)
	}
	return errors.Join(err, bounded(context.Background(), client.Close))
}
