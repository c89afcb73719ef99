// Package kafka puts messages into Kafka and reads them, for tests, benchmarks and the demo.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/errgroup"
)

// Durable is the configuration of a producer that loses nothing and keeps order, and that tries for
// a minute while the server is unavailable.
func Durable() *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Producer.RequiredAcks, cfg.Producer.Return.Successes = sarama.WaitForAll, true
	cfg.Producer.Idempotent, cfg.Net.MaxOpenRequests = true, 1
	cfg.Producer.Retry.Max, cfg.Producer.Retry.Backoff, cfg.Metadata.Retry.Max = 600, 100*time.Millisecond, 200
	return cfg
}

// leaderTimeout is how long a partition may be without leader: those of a new topic are not known
// at once.
const leaderTimeout = 90 * time.Second

// Read calls got with each message of a topic from its beginning, and with those that come, until
// ctx ends. got is called by one goroutine per partition. A reader goes on while the server is
// unavailable. cfg may be nil.
func Read(ctx context.Context, brokers []string, topic string, cfg *sarama.Config, got func(*sarama.ConsumerMessage)) (err error) {
	if cfg == nil {
		cfg = sarama.NewConfig()
	}
	cfg.Consumer.Return.Errors = false
	cfg.Consumer.Retry.Backoff, cfg.Metadata.Retry.Max = 200*time.Millisecond, 1000
	consumer, err := sarama.NewConsumer(brokers, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	partitions, err := consumer.Partitions(topic)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", topic, err)
	}
	readers, ctx := errgroup.WithContext(ctx)
	for _, p := range partitions {
		readers.Go(func() error { return readPartition(ctx, consumer, topic, p, got) })
	}
	return readers.Wait()
}

func readPartition(ctx context.Context, consumer sarama.Consumer, topic string, partition int32, got func(*sarama.ConsumerMessage)) (err error) {
	c, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	for deadline := time.Now().Add(leaderTimeout); err != nil && time.Now().Before(deadline); {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
		c, err = consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	}
	if err != nil {
		return fmt.Errorf("cannot read partition %d of %s: %w", partition, topic, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for {
		select {
		case m := <-c.Messages():
			got(m)
		case <-ctx.Done():
			return nil
		}
	}
}
