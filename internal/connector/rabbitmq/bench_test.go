package rabbitmq

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/test/stack"
)

const benchBody = 512

// discardSink counts messages and completes them at once.
type discardSink struct{ n atomic.Int64 }

func (f *discardSink) Send(_ context.Context, _ string, _ *message.Message, done func(error)) {
	f.n.Add(1)
	done(nil)
}

// benchQueue makes a queue with n messages.
func benchQueue(b *testing.B, srv *stack.RabbitMQServer, n int) (name string, conn *amqp.Connection) {
	b.Helper()
	conn, err := amqp.Dial(srv.URL())
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(b, err)
	require.NoError(b, ch.Confirm(false))
	name = srv.Name(b)
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	require.NoError(b, err)
	b.Cleanup(func() {
		if ch, err := conn.Channel(); err == nil {
			_, _ = ch.QueueDelete(name, false, false, false)
		}
	})
	var last *amqp.DeferredConfirmation
	for range n {
		last, err = ch.PublishWithDeferredConfirm("", name, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, benchBody)})
		require.NoError(b, err)
	}
	if last != nil {
		last.Wait()
	}
	return name, conn
}

// BenchmarkSource compares the source and its pipelines with a bare consumer that acknowledges every
// 250 messages.
func BenchmarkSource(b *testing.B) {
	srv := stack.RabbitMQ(b)
	b.Run("bare", func(b *testing.B) {
		q, conn := benchQueue(b, srv, b.N)
		ch, err := conn.Channel()
		require.NoError(b, err)
		require.NoError(b, ch.Qos(2000, 0, false))
		b.ReportAllocs()
		b.ResetTimer()
		deliveries, err := ch.Consume(q, "", false, false, false, false, nil)
		require.NoError(b, err)
		for i := range b.N {
			if d := <-deliveries; i%250 == 249 || i == b.N-1 {
				require.NoError(b, d.Ack(true))
			}
		}
	})
	b.Run("source", func(b *testing.B) {
		q, _ := benchQueue(b, srv, b.N)
		cfg := DefaultSourceConfig()
		cfg.URL = "amqp://" + srv.Addr() + "/"
		cfg.Queues = []Queue{{Name: q}}
		s := cfg.NewSource(connector.Options{}).(*Source)
		sink := &discardSink{}
		set := newSet(b, sink, "")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		b.ReportAllocs()
		b.ResetTimer()
		go func() { ended <- s.Run(ctx, set) }()
		for sink.n.Load() < int64(b.N) {
			time.Sleep(time.Millisecond)
		}
		b.StopTimer()
		cancel()
		require.NoError(b, <-ended)
	})
}

// BenchmarkSink compares the sink with a bare publisher that has 2000 messages unconfirmed.
func BenchmarkSink(b *testing.B) {
	srv := stack.RabbitMQ(b)
	b.Run("bare", func(b *testing.B) {
		q, conn := benchQueue(b, srv, 0)
		ch, err := conn.Channel()
		require.NoError(b, err)
		require.NoError(b, ch.Confirm(false))
		body := make([]byte, benchBody)
		window := make(chan *amqp.DeferredConfirmation, 2000)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for c := range window {
				c.Wait()
			}
		}()
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			c, err := ch.PublishWithDeferredConfirm("", q, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
			require.NoError(b, err)
			window <- c
		}
		close(window)
		<-ended
	})
	b.Run("sink", func(b *testing.B) {
		q, _ := benchQueue(b, srv, 0)
		cfg := DefaultSinkConfig()
		cfg.URL = "amqp://" + srv.Addr() + "/"
		s := cfg.NewSink(connector.Options{}).(*Sink)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		m := &message.Message{Value: make([]byte, benchBody)}
		var left, failed atomic.Int64
		left.Store(int64(b.N))
		all := make(chan struct{})
		done := func(err error) {
			if err != nil {
				failed.Add(1)
			}
			if left.Add(-1) == 0 {
				close(all)
			}
		}
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			s.Send(ctx, q, m, done)
		}
		<-all
		b.StopTimer()
		cancel()
		require.NoError(b, <-ended)
		require.Zero(b, failed.Load())
	})
}
