package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"
)

// pigeonhole is what the parts of the scenario share.
type pigeonhole struct {
	*runner
	pulsar          *cluster
	kafka, rabbitMQ string // addresses
	client          sarama.Client
	admin           sarama.ClusterAdmin
	sources         []func() error // remove the sources of the current part
}

// start starts the three systems for this run only. close of the runner stops them.
func (b *pigeonhole) start(ctx context.Context) (err error) {
	b.scenario.Brokers = map[string]workload.Broker{"": {Conf: map[string]string{"brokerDeduplicationEnabled": "true"}}}
	if b.pulsar, err = b.cluster(ctx, ""); err != nil {
		return err
	}
	values, _, stop, err := up(ctx, stack.Config{Checkout: "pigeonhole"}, "kafka", "rabbitmq")
	if err != nil {
		return err
	}
	b.pulsar.stops = append(b.pulsar.stops, stop)
	b.kafka, b.rabbitMQ = values["KAFKA_BROKERS"], values["RABBITMQ_URL"]
	if b.client, err = sarama.NewClient(strings.Split(b.kafka, ","), kafka.Durable()); err != nil {
		return err
	}
	b.admin, err = sarama.NewClusterAdminFromClient(b.client)
	return err
}

// kafkaTopic creates a topic with n messages.
func (b *pigeonhole) kafkaTopic(ctx context.Context, partitions, n int) (string, error) {
	topic := "bench-" + rand.Text()
	detail := sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}
	if err := b.admin.CreateTopic(topic, &detail, false); err != nil {
		return "", err
	}
	// A producer uses only partitions that have leaders. RefreshMetadata tries again until all have.
	if err := b.client.RefreshMetadata(topic); err != nil || n == 0 {
		return topic, err
	}
	b.sources = append(b.sources, func() error { return b.admin.DeleteTopic(topic) })
	return topic, b.fill(ctx, "kafka", b.kafka, topic, n)
}

// queue creates a queue with n messages.
func (b *pigeonhole) queue(ctx context.Context, n int) (string, error) {
	queue := "bench-" + rand.Text()
	if err := rabbitmq.Declare(b.rabbitMQ, queue); err != nil || n == 0 {
		return queue, err
	}
	b.sources = append(b.sources, func() error { return rabbitmq.Delete(b.rabbitMQ, queue) })
	return queue, b.fill(ctx, "rabbitmq", b.rabbitMQ, queue, n)
}

// fill publishes n messages.
func (b *pigeonhole) fill(ctx context.Context, driver, url, topic string, n int) error {
	w := b.part("", 0, 2*time.Minute).Workload
	w.SubscriptionsPerTopic = 1 // with subscriptions, messages have numbers
	result, err := b.runTurn(ctx, driver, url, load.Turn{Workload: w, Topics: []string{topic}, Messages: n})
	if err == nil && int(result.Figures["acknowledged"]) != n {
		err = fmt.Errorf("%.0f of %d messages were acknowledged", result.Figures["acknowledged"], n)
	}
	return err
}

// fromKafka creates a topic with n messages. It returns a function that returns the key source of a
// route, with a new group each time, so that each route receives all messages.
func (b *pigeonhole) fromKafka(ctx context.Context, partitions, n int) (func() (string, error), error) {
	topic, err := b.kafkaTopic(ctx, partitions, n)
	return func() (string, error) { return b.kafkaSource(topic), nil }, err
}

func (b *pigeonhole) kafkaSource(topic string) string {
	return fmt.Sprintf("kafka: {brokers: [%q], group: %s, topics: [%s]}", b.kafka, rand.Text(), topic)
}

// fromPulsar is fromKafka for a topic in Pulsar with the part's messages.
func (b *pigeonhole) fromPulsar(ctx context.Context, p *workload.Part) (func() (string, error), error) {
	source := *p
	source.Workload.PartitionsPerTopic, source.Preload = routePartitions, p.Messages
	topics, err := b.preload(ctx, b.pulsar, &source)
	b.sources = append(b.sources, func() error {
		b.pulsar.remove(ctx, topics, true)
		return nil
	})
	return func() (string, error) {
		return fmt.Sprintf("pulsar: {url: %q, topics: [%q], subscription: %s, type: failover}",
			b.pulsar.config.URL, topics[0], rand.Text()), nil
	}, err
}

// fromRabbitMQ returns a function that creates a queue with n messages each time.
func (b *pigeonhole) fromRabbitMQ(ctx context.Context, n int) func() (string, error) {
	return func() (string, error) {
		queue, err := b.queue(ctx, n)
		return fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %s}], prefetch: %d}",
			b.withoutUser(), queue, load.RabbitMQPrefetch), err
	}
}

// withoutUser is RabbitMQ's URL as a route takes it: without the user, who is the default one.
func (b *pigeonhole) withoutUser() string { return strings.Replace(b.rabbitMQ, "guest:guest@", "", 1) }

// toPulsar returns a function that creates a topic each time. partition is how a route chooses one.
func (b *pigeonhole) toPulsar(ctx context.Context, partitions int, partition string) func() (*destination, error) {
	return func() (*destination, error) {
		topics, err := b.pulsar.topics(ctx, "pigeonhole", workload.Workload{Topics: 1, PartitionsPerTopic: partitions}, nil)
		return &destination{
			sink: fmt.Sprintf("pulsar: {url: %q, partition: %s}", b.pulsar.config.URL, partition), to: topics[0],
			stored: func() (int64, error) {
				all, err := b.pulsar.stored(ctx, topics, partitions)
				return all.messages, err
			},
			remove: func() error {
				b.pulsar.remove(ctx, topics, true)
				return nil
			},
		}, err
	}
}

func (b *pigeonhole) toKafka(ctx context.Context) func() (*destination, error) {
	return func() (*destination, error) {
		topic, err := b.kafkaTopic(ctx, routePartitions, 0)
		return &destination{
			sink: fmt.Sprintf("kafka: {brokers: [%q]}", b.kafka), to: topic,
			stored: func() (stored int64, err error) {
				for p := range int32(routePartitions) {
					end, endErr := b.client.GetOffset(topic, p, sarama.OffsetNewest)
					stored, err = stored+end, errors.Join(err, endErr)
				}
				return stored, err
			},
			remove: func() error { return b.admin.DeleteTopic(topic) },
		}, err
	}
}

func (b *pigeonhole) toRabbitMQ(ctx context.Context) func() (*destination, error) {
	return func() (*destination, error) {
		queue, err := b.queue(ctx, 0)
		return &destination{
			sink: fmt.Sprintf("rabbitmq: {url: %q}", b.withoutUser()), to: queue,
			stored: func() (stored int64, err error) {
				err = rabbitmq.With(b.rabbitMQ, func(c *amqp.Channel) error {
					q, err := c.QueueDeclarePassive(queue, true, false, false, false, nil)
					stored = int64(q.Messages)
					return err
				})
				return stored, err
			},
			remove: func() error { return rabbitmq.Delete(b.rabbitMQ, queue) },
		}, err
	}
}
