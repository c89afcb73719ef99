package pieces

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/test/bench/measure"

	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// All are the implementations that scenarios compare. Each sets up, calls
// m.Start, moves messages and calls m.Stop.
func All() map[string]func(context.Context, measure.Piece, *measure.Meter) error {
	return map[string]func(context.Context, measure.Piece, *measure.Meter) error{
		"raw-async":      rawAsync,
		"raw-sync":       rawSync,
		"ops-async":      opsAsync,
		"remote-write":   remoteWrite,
		"raw-json":       rawJSON,
		"check-remote":   checkRemote,
		"sarama-produce": saramaProduce,
		"amqp-publish":   amqpPublish,
		"amqp-consume":   amqpConsume,
		"timed-kafka":    timedKafka,
		"timed-pulsar":   timedPulsar,
		"timed-consume":  timedConsume,
		"timed-read":     timedKafkaConsume,
		"sarama-consume": saramaConsume,
		"franz-consume":  franzConsume,
		"franz-produce":  franzProduce,
		"redis-paced":    redisPaced,
		"redis-lag":      redisLag,
		"redis-stream":   redisStream,
		"raw-lag":        rawLag,
		"event-load":     eventLoad,
	}
}

func rawClient(p measure.Piece) (pulsar.Client, error) {
	return pulsar.NewClient(pulsar.ClientOptions{
		URL: p.URL, ListenerName: p.Listener, ConnectionTimeout: 5 * time.Second, MemoryLimitBytes: -1,
		Logger: pulsarlog.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(),
	})
}

// opsOptions are the raw producer's options with the settings of messaging.Ops.
func opsOptions(topic string) pulsar.ProducerOptions {
	ops := messaging.Ops()
	return pulsar.ProducerOptions{
		Topic: topic, MaxPendingMessages: ops.MaxPendingRecords, SendTimeout: -1,
		BatchingMaxPublishDelay: ops.Linger, CompressionType: pulsar.LZ4,
		BatchingMaxMessages: uint(ops.BatchRecords), BatchingMaxSize: uint(ops.BatchBytes),
	}
}

func rawAsync(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := rawClient(p)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(opsOptions(p.Topic))
	if err != nil {
		return err
	}
	payloads := p.Bodies()
	var t tally
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { t.note(err) }
	if err := m.Start(); err != nil {
		return err
	}
	for n := 0; p.More(n, m.Began); n++ {
		producer.SendAsync(ctx, &pulsar.ProducerMessage{Payload: payloads[n%len(payloads)]}, done)
	}
	if err := producer.FlushWithCtx(ctx); err != nil {
		return err
	}
	return t.stop(m)
}

// tally counts the outcomes of asynchronous sends.
type tally struct{ acked, failed atomic.Int64 }

func (t *tally) note(err error) {
	if err != nil {
		if t.failed.Add(1) == 1 {
			fmt.Fprintln(os.Stderr, "bench: the first that failed:", err)
		}
	} else {
		t.acked.Add(1)
	}
}

// stop ends the measurement; sends that failed are an error.
func (t *tally) stop(m *measure.Meter) error {
	m.Stop(int(t.acked.Load()))
	return failures(t.failed.Load())
}

func failures(n int64) error {
	if n > 0 {
		return fmt.Errorf("%d messages failed", n)
	}
	return nil
}

func rawSync(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := rawClient(p)
	if err != nil {
		return err
	}
	defer client.Close()
	o := opsOptions(p.Topic)
	producer, err := client.CreateProducer(o)
	if err != nil {
		return err
	}
	payload := measure.Body(p.Payload)
	return callers(p, m, func() error {
		_, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: payload})
		return err
	})
}

// warmUp is how many messages timed callers send before they are measured.
func warmUp(callers int) int {
	if callers == 0 {
		return 0
	}
	return 100
}

// callers lets p.Callers goroutines call send in a loop, timing each call.
func callers(p measure.Piece, m *measure.Meter, send func() error) error {
	for range warmUp(p.Callers) { // connections, buffers and the broker's ledger are warm
		if err := send(); err != nil {
			return err
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	var left, failed atomic.Int64
	left.Store(int64(p.Count))
	times := make([][]time.Duration, p.Callers)
	for i := range p.Callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 && time.Since(m.Began).Seconds() < p.Seconds {
				t := time.Now()
				if send() != nil {
					failed.Add(1)
					return
				}
				times[i] = append(times[i], time.Since(t))
			}
		})
	}
	wg.Wait()
	var all []time.Duration
	for _, t := range times {
		all = append(all, t...)
	}
	m.Stop(len(all))
	m.Latencies(all)
	return failures(failed.Load())
}

func library(ctx context.Context, p measure.Piece) (*messaging.Client, error) {
	return messaging.Dial(ctx, messaging.Config{URL: p.URL, ListenerName: p.Listener})
}

// libraryPublisher opens a publisher of p's topic, in a client that end closes.
func libraryPublisher(ctx context.Context, p measure.Piece, profile messaging.Profile) (publisher *messaging.Publisher, end func(), err error) {
	client, err := library(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = client.Close(ctx) }
	if publisher, err = client.Publisher(ctx, p.Topic, profile); err != nil {
		end()
		return nil, nil, err
	}
	return publisher, end, nil
}

func opsAsync(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	publisher, end, err := libraryPublisher(ctx, p, messaging.Ops())
	if err != nil {
		return err
	}
	defer end()
	payloads := p.Bodies()
	var t tally
	done := func(_ messaging.MessageID, err error) { t.note(err) }
	if err := m.Start(); err != nil {
		return err
	}
	for n := 0; p.More(n, m.Began); n++ {
		publisher.PublishAsync(ctx, &messaging.Record{Payload: payloads[n%len(payloads)]}, done)
	}
	if err := publisher.Flush(ctx); err != nil {
		return err
	}
	return t.stop(m)
}
