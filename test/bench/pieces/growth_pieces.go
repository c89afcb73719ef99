package pieces

import (
	"context"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/measure"
)

// GrowthWarmUp is how many records are published before a piece of growth is measured.
const GrowthWarmUp = 20_000

// growthLoad publishes record after record: a warm-up, then what is measured.
func growthLoad(p measure.Piece, m *measure.Meter, send func(i int, key string), flush func() error, t *tally) error {
	keys := make([]string, growthKeys)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	for n := range GrowthWarmUp {
		send(n, keys[n%growthKeys])
	}
	if err := flush(); err != nil {
		return err
	}
	t.acked.Store(0)
	if err := m.Start(); err != nil {
		return err
	}
	for n := 0; p.More(n, m.Began); n++ {
		// In step with the clock every 20 records, half a millisecond at growthRate.
		if p.Rate > 0 && n%20 == 0 {
			due := m.Began.Add(time.Duration(n) * time.Second / time.Duration(p.Rate))
			time.Sleep(time.Until(due))
		}
		send(n, keys[n%growthKeys])
	}
	if err := flush(); err != nil {
		return err
	}
	return t.stop(m)
}

func growthOurs(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := library(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	var all []*messaging.Publisher
	for _, topic := range p.TopicsOf() {
		publisher, err := client.Publisher(ctx, topic, messaging.Ops())
		if err != nil {
			return err
		}
		all = append(all, publisher)
	}
	if strings.Contains(p.Kind, "idle") {
		return growthIdling(ctx, p, m)
	}
	payload := measure.Body(p.Payload)
	var t tally
	done := func(_ messaging.MessageID, err error) { t.note(err) }
	return growthLoad(p, m, func(i int, key string) {
		all[i%len(all)].PublishAsync(ctx, &messaging.Record{Key: key, Payload: payload}, done)
	}, func() error {
		for _, publisher := range all {
			if err := publisher.Flush(ctx); err != nil {
				return err
			}
		}
		return nil
	}, &t)
}

func growthPlain(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	client, err := rawClient(p)
	if err != nil {
		return err
	}
	defer client.Close()
	var all []pulsar.Producer
	for _, topic := range p.TopicsOf() {
		o := opsOptions(topic)
		o.MaxPendingMessages = max(o.MaxPendingMessages/max(p.Partitions, 1), 1) // the same in all
		producer, err := client.CreateProducer(o)
		if err != nil {
			return err
		}
		all = append(all, producer)
	}
	if strings.Contains(p.Kind, "idle") {
		return growthIdling(ctx, p, m)
	}
	payload := measure.Body(p.Payload)
	var t tally
	done := func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { t.note(err) }
	return growthLoad(p, m, func(i int, key string) {
		all[i%len(all)].SendAsync(ctx, &pulsar.ProducerMessage{Key: key, Payload: payload}, done)
	}, func() error {
		for _, producer := range all {
			if err := producer.FlushWithCtx(ctx); err != nil {
				return err
			}
		}
		return nil
	}, &t)
}

// growthIdling measures a process that does nothing for a while.
func growthIdling(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	debug.FreeOSMemory()
	if err := m.Start(); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(p.Seconds * float64(time.Second))):
	case <-ctx.Done():
		return ctx.Err()
	}
	m.Stop(1)
	return nil
}

// growthKeys are the keys of the records: enough that each partition gets many.
const growthKeys = 10_007
