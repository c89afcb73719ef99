package pieces

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// saramaConsume reads all partitions of a topic from their beginning.
func saramaConsume(ctx context.Context, p measure.Piece, m *measure.Meter) (err error) {
	metrics.UseNilMetrics = true
	cfg := sarama.NewConfig()
	cfg.Version, cfg.ChannelBufferSize, cfg.Consumer.Fetch.Default = sarama.V2_8_0_0, 4096, 4<<20
	consumer, err := sarama.NewConsumer(strings.Split(p.URL, ","), cfg)
	if err != nil {
		return err
	}
	partitions, err := consumer.Partitions(p.Topic)
	if err != nil {
		return errors.Join(err, consumer.Close())
	}
	if err := m.Start(); err != nil {
		return err
	}
	stop, done := make(chan struct{}), make(chan int, len(partitions))
	counts := make(chan int, 1024)
	for _, partition := range partitions {
		c, err := consumer.ConsumePartition(p.Topic, partition, sarama.OffsetOldest)
		if err != nil {
			return errors.Join(err, consumer.Close())
		}
		go func() {
			n := 0
			for {
				select {
				case <-c.Messages():
					if n++; n%1000 == 0 {
						counts <- 1000
					}
				case <-stop:
					c.AsyncClose()
					done <- n % 1000
					return
				}
			}
		}()
	}
	n := 0
	for n < p.Count-1000*len(partitions) && time.Since(m.Began).Seconds() < p.Seconds && ctx.Err() == nil {
		n += <-counts
	}
	m.Stop(n)
	close(stop)
	for range partitions {
		<-done
	}
	return consumer.Close()
}

// franzConsume is saramaConsume with the other client.
func franzConsume(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(p.URL, ",")...), kgo.ConsumeTopics(p.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(4<<20))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := m.Start(); err != nil {
		return err
	}
	n := 0
	for n < p.Count-1000*p.Partitions && time.Since(m.Began).Seconds() < p.Seconds {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(*kgo.Record) { n++ })
	}
	m.Stop(n)
	return nil
}

// franzProduce is saramaProduce with the other client.
func franzProduce(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(p.URL, ",")...), kgo.DefaultProduceTopic(p.Topic),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(1<<20), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var t tally
	done := func(_ *kgo.Record, err error) { t.note(err) }
	payloads := p.Bodies()
	if err := m.Start(); err != nil {
		return err
	}
	for n := 0; p.More(n, m.Began); n++ {
		client.Produce(ctx, &kgo.Record{Value: payloads[n%len(payloads)]}, done)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return t.stop(m)
}
