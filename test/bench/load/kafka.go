package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/systems/kafka"
)

// RouteSubscription is the subscription that the driver kafka receives from Pulsar.
const RouteSubscription = "route"

// kafkaDriver is the driver of sarama. The URL of the turn is the list of brokers. The name of a
// topic in Kafka is the last element of its name in Pulsar. Where a route copies the messages to
// Pulsar, the subscription [RouteSubscription] receives them there.
type kafkaDriver struct {
	brokers      []string
	workload     workload.Workload
	pulsar       Driver               // nil without RouteSubscription
	times        map[string]*recorder // end-to-end latencies by subscription
	measuredFrom time.Time
}

func newKafka(ctx context.Context, cluster messaging.Config, t Turn) (d Driver, err error) {
	metrics.UseNilMetrics = true // sarama's metrics cost CPU time
	k := &kafkaDriver{
		brokers: strings.Split(t.URL, ","), workload: t.Workload,
		times: map[string]*recorder{}, measuredFrom: time.Now().Add(t.Workload.Warmup()),
	}
	for _, s := range t.Subscriptions {
		k.times[s] = newRecorder()
	}
	if slices.Contains(t.Subscriptions, RouteSubscription) {
		k.pulsar, err = newLibrary(ctx, cluster, t)
	}
	return k, err
}

// config returns the settings with which a producer loses nothing and keeps the order.
func (k *kafkaDriver) config() *sarama.Config {
	cfg := kafka.Durable()
	if k.workload.ProducerRate == 0 { // for throughput, as the sink of Pigeonhole
		cfg.Producer.Compression = sarama.CompressionLZ4
		cfg.Producer.Flush.Frequency, cfg.Producer.Flush.Bytes = 5*time.Millisecond, 1<<20
	}
	cfg.Producer.Retry.Max = 100             // a new topic's partitions get their leaders late
	cfg.Producer.MaxMessageBytes = 1_000_000 // of a batch without compression: the brokers' default
	cfg.ChannelBufferSize = 4096
	cfg.Consumer.MaxWaitTime = 100 * time.Millisecond
	return cfg
}

func (k *kafkaDriver) Producer(_ context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	producer, err := sarama.NewAsyncProducer(k.brokers, k.config())
	if err != nil {
		return nil, err
	}
	p := &kafkaProducer{producer: producer, topic: path.Base(topic)}
	done := func(m *sarama.ProducerMessage, err error) {
		due, _ := m.Metadata.(time.Time) // the zero time if the message is not timed
		report(due, err)
		p.Done()
	}
	go func() {
		for m := range producer.Successes() {
			done(m, nil)
		}
	}()
	go func() {
		for e := range producer.Errors() {
			done(e.Msg, e.Err)
		}
	}()
	return p, nil
}

// Consume measures the latencies of each subscription. The runner would mix them.
func (k *kafkaDriver) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	timed := func(payload []byte) {
		due := time.Unix(0, int64(binary.BigEndian.Uint64(payload)))
		if due.After(k.measuredFrom) {
			k.times[subscription].record(time.Since(due))
		}
		binary.BigEndian.PutUint64(payload, 0) // not timed
		received(payload)
	}
	if subscription == RouteSubscription {
		return k.pulsar.Consume(ctx, topic, subscription, timed)
	}
	return kafka.Read(ctx, k.brokers, path.Base(topic), k.config(), func(m *sarama.ConsumerMessage) { timed(m.Value) })
}

// figures adds the latencies of each subscription: route_p99_ms and so on.
func (k *kafkaDriver) figures(into map[string]float64) {
	for subscription, times := range k.times {
		// It fails only if it cannot encode the histogram, which is not used.
		_ = times.results(subscription, &Result{Figures: into, Histograms: map[string]string{}})
	}
}

func (k *kafkaDriver) Close() {
	if k.pulsar != nil {
		k.pulsar.Close()
	}
}

type kafkaProducer struct {
	pending
	producer sarama.AsyncProducer
	topic    string
}

func (p *kafkaProducer) Send(ctx context.Context, m Message, due time.Time) {
	message := &sarama.ProducerMessage{Topic: p.topic, Value: sarama.ByteEncoder(m.Payload)}
	if !due.IsZero() {
		message.Metadata = due
	}
	p.Add(1)
	select {
	case p.producer.Input() <- message:
	case <-ctx.Done():
		p.Done() // the turn fails
	}
}

// pending counts the messages of a producer that are not acknowledged.
type pending struct{ sync.WaitGroup }

// Flush waits for all messages.
func (p *pending) Flush(context.Context) error {
	p.Wait()
	return nil
}

// Call is not supported: no part needs it.
func (p *pending) Call(context.Context, Message) error {
	return fmt.Errorf("callers with this driver: %w", errors.ErrUnsupported)
}
