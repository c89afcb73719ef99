package kafka_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/test/stack"
)

// counter is a sink that only counts, up to want.
type counter struct {
	n          atomic.Int64
	want       int64
	first, all chan struct{} // closed when the first and the last message have come
}

func (c *counter) Send(_ context.Context, _ string, _ *message.Message, done func(error)) {
	n := c.n.Add(1)
	if n == 1 {
		close(c.first)
	}
	if n == c.want {
		close(c.all)
	}
	done(nil)
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSinkAndSource writes b.N messages of 512 bytes to four partitions, then reads them
// through pipelines.
func BenchmarkSinkAndSource(b *testing.B) {
	srv := stack.Kafka(b)
	topic := srv.Topic(b, 4)
	out := sinkConfig(srv, topic)
	sink := out.NewSink(connector.Options{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 2)
	go func() { ended <- sink.Run(ctx) }()
	value := make([]byte, 512)
	for i := range value {
		value[i] = byte(i * i >> 3)
	}
	var acked atomic.Int64
	finished := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	began, spent := time.Now(), cpu(b)
	for range b.N {
		sink.Send(ctx, "", &message.Message{Value: value, Time: began}, func(err error) {
			if err != nil {
				b.Error(err)
			}
			if acked.Add(1) == int64(b.N) {
				close(finished)
			}
		})
	}
	<-finished
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "produced/s")
	b.ReportMetric(float64(b.N)/(cpu(b)-spent).Seconds(), "produced/cpu-s")

	to := &counter{want: int64(b.N), first: make(chan struct{}), all: make(chan struct{})}
	source := sourceConfig(srv, topic+"-g", topic).NewSource(connector.Options{})
	pipelines := pipeline.NewSet(pipeline.Config{Messages: 10_000, Bytes: 32 << 20, CommitEvery: time.Second, MinBackoff: time.Second, MaxBackoff: time.Second}, pipeline.Route{
		Sink: to, Log: zap.NewNop(), Metrics: pipeline.NewMetrics(prometheus.NewRegistry()).Route("bench"), Report: func(error) {}, Stop: func(error) {},
		Prepare: func() (pipeline.Prepare, func()) {
			return func(context.Context, *message.Message) (string, bool, error) { return "", true, nil }, nil
		},
	})
	go func() { ended <- source.Run(ctx, pipelines) }()
	<-to.first
	began, spent = time.Now(), cpu(b)
	<-to.all
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "consumed/s")
	b.ReportMetric(float64(b.N)/(cpu(b)-spent).Seconds(), "consumed/cpu-s")
	b.StopTimer()
	cancel()
	require.NoError(b, <-ended)
	require.NoError(b, <-ended)
}
