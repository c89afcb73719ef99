package messaging_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// BenchmarkConsumer consumes the same backlog with the bare client (Receive, Ack)
// and with Run, in turn, and reports both rates and their ratio.
func BenchmarkConsumer(b *testing.B) {
	const messages = 1_000_000
	srv := stack.Pulsar(b)
	ns := srv.Namespace(b)
	for _, size := range []int{200, 1024} {
		topic := srv.Topic(b, ns, 0)
		fillTopic(b, srv.URL(), topic, messages, size)
		for _, bm := range []struct {
			name        string
			order       messaging.Order
			kind        messaging.SubscriptionType
			concurrency int
		}{
			{"none-1", messaging.OrderNone, messaging.Shared, 1},
			{"none-16", messaging.OrderNone, messaging.Shared, 16},
			{"key-16", messaging.OrderKey, messaging.Exclusive, 16},
			{"total", messaging.OrderTotal, messaging.Exclusive, 1},
		} {
			b.Run(fmt.Sprintf("%dB/%s", size, bm.name), func(b *testing.B) {
				cfg := messaging.DefaultConsumerConfig()
				cfg.Topics, cfg.Order, cfg.Type, cfg.Concurrency = []string{topic}, bm.order, bm.kind, bm.concurrency
				cfg.Retry.InPlace = true
				var raw, ours time.Duration
				for i := range b.N {
					raw += consumeRaw(b, srv.URL(), cfg, fmt.Sprint("raw", i, time.Now().UnixNano()), messages)
					ours += consumeRun(b, srv.URL(), cfg, fmt.Sprint("run", i, time.Now().UnixNano()), messages)
				}
				n := float64(b.N * messages)
				b.ReportMetric(n/raw.Seconds(), "raw-msg/s")
				b.ReportMetric(n/ours.Seconds(), "run-msg/s")
				b.ReportMetric(raw.Seconds()/ours.Seconds(), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func fillTopic(tb testing.TB, url, topic string, messages, size int) {
	tb.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, MemoryLimitBytes: -1, Logger: log.DefaultNopLogger()})
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	p, err := c.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, CompressionType: pulsar.LZ4, BatchingMaxMessages: 1000, BatchingMaxSize: 1 << 20, MaxPendingMessages: 50_000,
	})
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = "abcdefgh"[rand.IntN(8)]
	}
	var failed atomic.Int64
	for i := range messages {
		p.SendAsync(context.Background(), &pulsar.ProducerMessage{Key: strconv.Itoa(i % 1000), Payload: payload},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					failed.Add(1)
				}
			})
	}
	if err := p.FlushWithCtx(context.Background()); err != nil || failed.Load() > 0 {
		tb.Fatal("fill: ", err, failed.Load())
	}
}

func consumeRaw(tb testing.TB, url string, cfg messaging.ConsumerConfig, sub string, messages int) time.Duration {
	tb.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, MemoryLimitBytes: -1, Logger: log.DefaultNopLogger()})
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	kinds := map[messaging.SubscriptionType]pulsar.SubscriptionType{
		messaging.Exclusive: pulsar.Exclusive, messaging.Failover: pulsar.Failover, messaging.Shared: pulsar.Shared,
	}
	began := time.Now()
	consumer, err := c.Subscribe(pulsar.ConsumerOptions{
		Topic: cfg.Topics[0], SubscriptionName: sub, Type: kinds[cfg.Type],
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		tb.Fatal(err)
	}
	for range messages {
		m, err := consumer.Receive(context.Background())
		if err != nil {
			tb.Fatal(err)
		}
		if err := consumer.Ack(m); err != nil {
			tb.Fatal(err)
		}
	}
	took := time.Since(began)
	consumer.Close() // Unsubscribe leaves goroutines behind
	return took
}

func consumeRun(tb testing.TB, url string, cfg messaging.ConsumerConfig, sub string, messages int) time.Duration {
	tb.Helper()
	c, err := messaging.Dial(context.Background(), messaging.Config{URL: url})
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close(context.Background())
	cfg.Subscription = sub
	consumer, err := c.Consumer(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var n atomic.Int64
	var took time.Duration
	began := time.Now()
	err = consumer.Run(ctx, func(context.Context, *messaging.Delivery) error {
		if n.Add(1) == int64(messages) {
			took = time.Since(began)
			cancel()
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return took
}
