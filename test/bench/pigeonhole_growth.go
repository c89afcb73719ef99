package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// growthPartitions measures what the same load costs, in CPU time and memory, from Kafka to
// Pulsar over more and more partitions.
func (b *bridgeBench) growthPartitions(ctx context.Context) error {
	perCPU := map[int]float64{}
	for _, n := range []int{4, 16, 64} {
		cpu, peak, err := b.grow(ctx, "partitions", 1, n)
		if err != nil {
			return err
		}
		if perCPU[n] = cpu; n == 64 {
			b.AtMost("growth_64_partitions_peak_mib", peak, 256)
		}
	}
	b.AtMost("growth_cpu_64_partitions_over_4", perCPU[4]/perCPU[64], 1.4)
	return nil
}

// growthRoutes is growthPartitions over more and more routes of one partition each.
func (b *bridgeBench) growthRoutes(ctx context.Context) error {
	for _, n := range []int{1, 10, 50} {
		_, peak, err := b.grow(ctx, "routes", n, 1)
		if err != nil {
			return err
		}
		if n == 50 {
			b.AtMost("growth_50_routes_peak_mib", peak, 256)
		}
	}
	return nil
}

// grow measures one size and returns the messages per CPU second and the peak memory.
func (b *bridgeBench) grow(ctx context.Context, what string, routes, partitions int) (perCPU, peak float64, err error) {
	n := b.count(1_000_000) / routes * routes
	var sources []string
	for range routes {
		source, err := b.kafkaTopicOf("growth", partitions)
		if err != nil {
			return 0, 0, err
		}
		sources = append(sources, source)
		if _, err := measure.Run(ctx, measure.Piece{
			Kind: "sarama-produce", URL: b.kafka, Topic: source, Payload: bridgePayload, Format: measure.Varied, Count: n / routes, Seconds: 120,
		}); err != nil {
			return 0, 0, err
		}
	}
	var runs []crossing
	size := max(routes, partitions)
	for range min(b.Rounds, 2) + 1 {
		c, err := b.growOnce(ctx, n, fmt.Sprintf("growth-%d-%s", size, what), sources, partitions)
		if err != nil {
			return 0, 0, err
		}
		runs = append(runs, c)
	}
	peak = measure.Most(measure.Each(runs, func(c crossing) float64 { return c.peak }))
	runs = runs[1:] // the first one warms the servers up
	rate := measure.Median(measure.Each(runs, crossing.rate))
	perCPU = measure.Median(measure.Each(runs, crossing.perCPU))
	b.Row("growth: %d %s\t%.0f\t%.0f\t%.0f", size, what, rate, perCPU, peak)
	prefix := "growth_" + strconv.Itoa(size) + "_" + what + "_"
	b.Figure(prefix+"msg_s", rate)
	b.Figure(prefix+"msg_cpu_s", perCPU)
	for _, source := range sources {
		err = errors.Join(err, b.admin.DeleteTopic(source))
	}
	return perCPU, peak, err
}

// growOnce moves what waits in the sources to topics of their own, which it then deletes.
func (b *bridgeBench) growOnce(ctx context.Context, n int, label string, sources []string, partitions int) (c crossing, err error) {
	text, targets := "", []string(nil)
	for i, source := range sources {
		target, err := b.pulsarTopicOf(ctx, "growth", partitions)
		if err != nil {
			return c, err
		}
		targets = append(targets, target)
		text += bridgeRoute("route-"+strconv.Itoa(i), "at_least_once", b.fromKafka(source), b.toPulsar(), target)
	}
	if c, err = b.crossWith(ctx, n, label, text); err != nil {
		return c, err
	}
	for _, target := range targets {
		if err := b.counted(ctx, target, n/len(sources), false); err != nil {
			return c, err
		}
		if err := servers.Del(ctx, b.pulsar.TopicURL(target)+"/partitions?force=true"); err != nil {
			return c, err
		}
	}
	return c, nil
}
