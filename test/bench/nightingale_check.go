package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/senders"
)

// countSamples reads all of a topic, each partition in its order. It counts the distinct samples,
// those that were stored again, and those with a gap before them.
func countSamples(ctx context.Context, client *messaging.Client, topic string, p remotePart) (map[string]float64, error) {
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{topic}, "check"
	cfg.Type, cfg.Order = messaging.Exclusive, messaging.OrderTotal
	cfg.DrainIdle = 10 * time.Second
	consumer, err := client.Consumer(cfg)
	if err != nil {
		return nil, err
	}
	next := map[[2]string]int64{} // number of the next sample, by connection and series
	counts := map[string]float64{"distinct": 0, "duplicated": 0, "out_of_order": 0}
	count := func(connection, series string, at int64) {
		key, n := [2]string{connection, series}, at-senders.FirstTime
		if n < next[key] {
			counts["duplicated"]++
			return
		}
		if n > next[key] {
			counts["out_of_order"]++
		}
		counts["distinct"]++
		next[key] = n + 1
	}
	decode := jsonSample
	if p.format == "packed" {
		decode = packedSamples
	}
	var bad error // the last one
	_, err = consumer.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		if err := decode(d.Payload, count); err != nil {
			bad = err
		}
		return nil
	})
	if want := p.load.Callers * p.load.Remote.PerRequest(); len(next) != want {
		bad = errors.Join(bad, fmt.Errorf("%d series were stored: want %d", len(next), want))
	}
	return counts, errors.Join(err, bad)
}

func jsonSample(payload []byte, count func(connection, series string, at int64)) error {
	var message struct {
		Labels    struct{ Connection, Series string }
		Timestamp int64
	}
	if err := json.Unmarshal(payload, &message); err != nil {
		return err
	}
	count(message.Labels.Connection, message.Labels.Series, message.Timestamp)
	return nil
}

func packedSamples(payload []byte, count func(connection, series string, at int64)) error {
	var req writev2.Request
	if err := req.Unmarshal(payload); err != nil {
		return err
	}
	b := labels.NewScratchBuilder(10)
	for _, series := range req.Timeseries {
		set, err := series.ToLabels(&b, req.Symbols)
		if err != nil {
			return err
		}
		for _, one := range series.Samples {
			count(set.Get("connection"), set.Get("series"), one.Timestamp)
		}
	}
	return nil
}
