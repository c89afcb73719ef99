package pieces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rcrowley/go-metrics"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// How many deliveries may be without acknowledgement, and how many publishings without
// confirm, on both sides of a comparison.
const (
	Window   = 2000
	confirms = 8000
)

// saramaProducer is the settings with which a Kafka client loses nothing and keeps
// order; the sink has the same.
func saramaProducer() *sarama.Config {
	cfg := kafka.Durable()
	metrics.UseNilMetrics = true
	cfg.Producer.Compression = sarama.CompressionLZ4
	cfg.Producer.Retry.Max = 100 // the broker leads a new topic's partitions a little later than it says
	cfg.Producer.Flush.Frequency, cfg.Producer.Flush.Bytes = 5*time.Millisecond, 1<<20
	cfg.Producer.MaxMessageBytes = 1_000_000 // of a batch before it is compressed: what brokers take by default
	cfg.Producer.Return.Successes, cfg.Producer.Return.Errors = true, true
	cfg.ChannelBufferSize = 4096
	return cfg
}

// saramaProduce is a bare asynchronous producer.
func saramaProduce(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	producer, err := sarama.NewAsyncProducer(strings.Split(p.URL, ","), saramaProducer())
	if err != nil {
		return err
	}
	var t tally
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for producer.Successes() != nil {
			select {
			case _, ok := <-producer.Successes():
				if !ok {
					return
				}
				t.note(nil)
			case e, ok := <-producer.Errors():
				if !ok {
					return
				}
				t.note(e)
			}
		}
	}()
	payloads := p.Bodies()
	if err := m.Start(); err != nil {
		return err
	}
	sent := 0
	for ; p.More(sent, m.Began); sent++ {
		select {
		case producer.Input() <- &sarama.ProducerMessage{Topic: p.Topic, Value: sarama.ByteEncoder(payloads[sent%len(payloads)])}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for t.acked.Load()+t.failed.Load() < int64(sent) && ctx.Err() == nil {
		measure.Wait(ctx, time.Millisecond) // a producer that is being closed sends nothing again
	}
	producer.AsyncClose()
	<-drained
	return t.stop(m)
}

// amqpPublish is a bare publisher of persistent messages with confirms, of which a
// window is open.
func amqpPublish(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	connection, channel, err := rabbitmq.Open(p.URL)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	if err := channel.Confirm(false); err != nil {
		return err
	}
	acks := channel.NotifyPublish(make(chan amqp.Confirmation, confirms))
	payloads := p.Bodies()
	if err := m.Start(); err != nil {
		return err
	}
	sent, confirmed := 0, 0
	for ; p.More(sent, m.Began); sent++ {
		for sent-confirmed >= confirms {
			if c := <-acks; !c.Ack {
				return errors.New("not confirmed")
			}
			confirmed++
		}
		err := channel.PublishWithContext(ctx, "", p.Topic, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: payloads[sent%len(payloads)]})
		if err != nil {
			return err
		}
	}
	for ; confirmed < sent; confirmed++ {
		if c := <-acks; !c.Ack {
			return errors.New("not confirmed")
		}
	}
	m.Stop(sent)
	return nil
}

// amqpConsume is a bare consumer that acknowledges several deliveries at once, as
// often as the source does.
func amqpConsume(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	connection, channel, err := rabbitmq.Open(p.URL)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	if err := channel.Qos(Window, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, p.Topic, "bench", false, false, false, false, nil)
	if err != nil {
		return err
	}
	n := 0
	for d := range deliveries {
		if n == 0 {
			if err := m.Start(); err != nil { // as for the route: from the first message on
				return err
			}
		}
		n++
		if n%(Window/4) == 0 || n == p.Count {
			if err := d.Ack(true); err != nil {
				return err
			}
		}
		if n == p.Count {
			break
		}
	}
	m.Stop(n)
	return nil
}

// timedKafka produces p.Count messages a second, each with the time in it, for
// p.Seconds. It runs beside the consumer of timedConsume.
func timedKafka(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	cfg := saramaProducer()
	cfg.Producer.Flush.Frequency, cfg.Producer.Flush.Bytes, cfg.Producer.Compression = 0, 0, sarama.CompressionNone
	producer, err := sarama.NewSyncProducer(strings.Split(p.URL, ","), cfg)
	if err != nil {
		return err
	}
	return timed(ctx, p, m, func(payload []byte) error {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: p.Topic, Value: sarama.ByteEncoder(payload)})
		return err
	})
}

// timedPulsar is timedKafka straight to Pulsar.
func timedPulsar(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	publisher, end, err := libraryPublisher(ctx, p, messaging.Ops())
	if err != nil {
		return err
	}
	defer end()
	return timed(ctx, p, m, func(payload []byte) error { return publisher.Publish(ctx, &messaging.Record{Payload: payload}) })
}

// timed calls put p.Count times a second with the time in the payload, from several
// goroutines: one that waits for its acknowledgement must not delay the next.
func timed(ctx context.Context, p measure.Piece, m *measure.Meter, put func([]byte) error) error {
	if err := m.Start(); err != nil {
		return err
	}
	var failed atomic.Int64
	slots := make(chan struct{}, 64)
	tick := time.NewTicker(time.Second / time.Duration(p.Count))
	defer tick.Stop()
	n := 0
	for time.Since(m.Began).Seconds() < p.Seconds && ctx.Err() == nil {
		<-tick.C
		slots <- struct{}{}
		n++
		go func() {
			defer func() { <-slots }()
			payload := measure.Stamp(p.Payload)
			if put(payload) != nil {
				failed.Add(1)
			}
		}()
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	m.Stop(n)
	return failures(failed.Load())
}

// timedKafkaConsume is timedConsume from Kafka itself: what an application sees that
// reads there.
func timedKafkaConsume(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	cfg := sarama.NewConfig()
	cfg.Version, cfg.Consumer.MaxWaitTime, metrics.UseNilMetrics = sarama.V2_8_0_0, 100*time.Millisecond, true
	consumer, err := sarama.NewConsumer(strings.Split(p.URL, ","), cfg)
	if err != nil {
		return err
	}
	partitions, err := consumer.Partitions(p.Topic)
	if err != nil {
		return err
	}
	all := make(chan *sarama.ConsumerMessage, 1024)
	for _, partition := range partitions {
		c, err := consumer.ConsumePartition(p.Topic, partition, sarama.OffsetOldest)
		for tries := 0; err != nil && tries < 100; tries++ { // a new topic's leaders are not known at once
			measure.Wait(ctx, 100*time.Millisecond)
			c, err = consumer.ConsumePartition(p.Topic, partition, sarama.OffsetOldest)
		}
		if err != nil {
			return err
		}
		go func() {
			for message := range c.Messages() {
				all <- message
			}
		}()
	}
	if err := m.Start(); err != nil {
		return err
	}
	var times []time.Duration
	var first time.Time
	for limit := time.After(time.Duration((p.Seconds + 30) * float64(time.Second))); ; {
		select {
		case message := <-all:
			now := time.Now()
			if first.IsZero() {
				first = now
			}
			if now.Sub(first) > p.Half() {
				times = append(times, now.Sub(measure.Stamped(message.Value)))
			}
			if now.Sub(first) < 2*p.Half() {
				continue
			}
		case <-limit:
		case <-ctx.Done():
			return ctx.Err()
		}
		m.Stop(len(times))
		m.Latencies(times)
		return nil
	}
}

// timedConsume reads p.Topic for p.Seconds after the first message and notes how long
// each one took.
func timedConsume(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := library(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{p.Topic}, "timed"
	cfg.Type, cfg.Order, cfg.Concurrency = messaging.Exclusive, messaging.OrderTotal, 1
	consumer, err := client.Consumer(cfg)
	if err != nil {
		return err
	}
	running, stop := context.WithTimeout(ctx, time.Duration((p.Seconds+30)*float64(time.Second)))
	defer stop()
	if err := m.Start(); err != nil {
		return err
	}
	var times []time.Duration
	var first time.Time
	fmt.Fprintln(os.Stderr, "reading", p.Topic)
	err = consumer.Run(running, func(_ context.Context, d *messaging.Delivery) error {
		now := time.Now()
		if first.IsZero() {
			first = now
		}
		took := now.Sub(measure.Stamped(d.Payload))
		if now.Sub(first) > p.Half() {
			times = append(times, took)
		}
		if now.Sub(first) > 2*p.Half() {
			stop()
		}
		return nil
	})
	m.Stop(len(times))
	m.Latencies(times)
	return err
}
