package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kgo"
)

// drivers compares the two Kafka clients for Go that could stand behind Pigeonhole, by
// messages per CPU second: producing with all acknowledgements, idempotent, LZ4, and
// consuming what was produced so.
func (b *bridgeBench) drivers(ctx context.Context) error {
	n := b.count(1_500_000)
	source, err := b.kafkaTopic("source")
	if err != nil {
		return err
	}
	if _, err := runPiece(ctx, piece{Kind: "sarama-produce", URL: b.kafka, Topic: source, Payload: bridgePayload, Format: varied, Count: n, Seconds: 120}); err != nil {
		return err
	}
	for _, way := range []string{"produce", "consume"} {
		var sarama, franz []float64
		perCPU := func(driver string) func(int) (float64, error) {
			return func(int) (per float64, err error) {
				topic := source
				if way == "produce" {
					if topic, err = b.kafkaTopic("bare"); err != nil {
						return 0, err
					}
				}
				o, err := runPiece(ctx, piece{
					Kind: driver + "-" + way, URL: b.kafka, Topic: topic, Payload: bridgePayload, Format: varied, Count: n, Seconds: pieceSeconds,
				})
				return float64(o.Messages) / o.CPU, err
			}
		}
		if err := inTurn(b.rounds, into(&franz, perCPU("franz")), into(&sarama, perCPU("sarama"))); err != nil {
			return err
		}
		ratios := ratios(franz, sarama)
		b.row("franz-go, %s\t\t%.0f\t\tsarama\t\t%.0f\t%.3f (%.3f-%.3f)", way, median(franz), median(sarama), median(ratios), minOf(ratios), maxOf(ratios))
		b.figure("franz_vs_sarama_"+way+"_per_cpu_s", median(ratios))
	}
	return nil
}

// saramaConsume reads all partitions of a topic from their beginning.
func saramaConsume(ctx context.Context, p piece, m *meter) (err error) {
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
	if err := m.start(); err != nil {
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
	for n < p.Count-1000*len(partitions) && time.Since(m.began).Seconds() < p.Seconds && ctx.Err() == nil {
		n += <-counts
	}
	m.stop(n)
	close(stop)
	for range partitions {
		<-done
	}
	return consumer.Close()
}

// franzConsume is saramaConsume with the other client.
func franzConsume(ctx context.Context, p piece, m *meter) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(p.URL, ",")...), kgo.ConsumeTopics(p.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(4<<20))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := m.start(); err != nil {
		return err
	}
	n := 0
	for n < p.Count-1000*bridgeParts && time.Since(m.began).Seconds() < p.Seconds {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(*kgo.Record) { n++ })
	}
	m.stop(n)
	return nil
}

// franzProduce is saramaProduce with the other client.
func franzProduce(ctx context.Context, p piece, m *meter) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(p.URL, ",")...), kgo.DefaultProduceTopic(p.Topic),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(1<<20), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var t tally
	done := func(_ *kgo.Record, err error) { t.note(err) }
	payloads := p.bodies()
	if err := m.start(); err != nil {
		return err
	}
	for n := 0; p.more(n, m.began); n++ {
		client.Produce(ctx, &kgo.Record{Value: payloads[n%len(payloads)]}, done)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return t.stop(m)
}
