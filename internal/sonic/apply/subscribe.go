package apply

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// consumer returns the configuration of the applier's consumer. The consumer creates the
// subscription if it does not exist, at the earliest message of the topic.
func (c Config) consumer() messaging.ConsumerConfig {
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{c.Topic}, c.Subscription()
	cfg.Type, cfg.Order, cfg.StartAt = messaging.Failover, messaging.OrderTotal, messaging.StartEarliest
	cfg.PrefetchBytes, cfg.MaxMessageBytes = 16<<20, 64<<10
	cfg.Retry.MaxAttempts, cfg.Retry.MinDelay, cfg.Retry.MaxDelay = 0, 50*time.Millisecond, 2*time.Second
	cfg.StopTimeout, cfg.StuckAfter = 5*time.Second, 24*time.Hour // the applier itself reports why a message waits
	return cfg
}

// Subscription returns the name of the zone's subscription to another zone's topic.
func (c Config) Subscription() string { return "sonic-" + c.Zone }

// Subscribe creates the zone's subscription to another zone's topic: from then on Pulsar keeps the
// topic's messages for the zone's applier. An existing subscription stays as it is. If the applier
// of a running Sonic uses the subscription, Subscribe waits until ctx ends and returns an error.
func Subscribe(ctx context.Context, client *messaging.Client, cfg Config) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var subscribed atomic.Bool
	consumer, err := client.Consumer(cfg.consumer(), messaging.OnOwned(func(ctx context.Context, _ string, _ int) {
		subscribed.Store(true)
		stop()
		<-ctx.Done() // no message is handled
	}))
	if err != nil {
		return err
	}
	err = consumer.Run(running, func(ctx context.Context, _ *messaging.Delivery) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if subscribed.Load() {
		return err
	}
	if ctx.Err() != nil {
		err = cmp.Or(consumer.Unhealthy(), err, fmt.Errorf("another process has the subscription: stop the Sonic of zone %s", cfg.Zone))
	}
	return fmt.Errorf("cannot subscribe to %s: %w", cfg.Topic, err)
}
