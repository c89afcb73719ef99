package engine

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// rebuildTimeout bounds the reading: the events of the partition wait meanwhile.
const rebuildTimeout = 10 * time.Second

// clocksApart is how far the clocks of publishers may differ: publish times do not always ascend.
const clocksApart = time.Minute

// rebuild reads the partition to fill the window: with the events before the first delivered one,
// which was published at the given time, and with the events after it. Some of these may have been
// acknowledged, and are not delivered. Events that the topic does not keep, or that are not read in
// time, are unknown: a duplicate of one may be let through.
//
// Dead letters of the bus are not put into the window. If they cannot be read, the window is not
// rebuilt.
func (p *partition) rebuild(ctx context.Context, published time.Time) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()
	n, err := p.read(ctx, published.Add(-p.window.length-clocksApart))
	took := time.Since(began)
	p.bus.metrics.rebuild.Observe(took.Seconds())
	log := p.bus.log.With(zap.Int("partition", p.index), zap.Int("events", n), zap.Duration("took", took))
	switch {
	case err == nil:
		log.Info("read the deduplication window")
	case p.ctx.Err() == nil:
		log.Warn("cannot read the whole deduplication window: some duplicate events may be delivered", zap.Error(err))
	}
}

func (p *partition) read(ctx context.Context, from time.Time) (n int, err error) {
	refused, err := p.readRefused(ctx, from)
	if err != nil {
		return 0, err
	}
	err = p.readTopic(ctx, p.topic, from, func(d *messaging.Delivery) error {
		e, err := event.Decode(d.Payload)
		if err != nil {
			return nil //nolint:nilerr // it is a dead letter
		}
		place, err := positionOf(d.ID)
		if err != nil {
			return err
		}
		n++
		if refused[place] {
			p.window.passed(place, d.PublishTime)
			return nil
		}
		p.bus.metrics.forgot.Add(float64(p.window.ahead(identityOf(d, &e), place, d.PublishTime)))
		return nil
	})
	return n, err
}

// readRefused returns the positions of those events of the partition that are dead letters of the
// bus, published at the given time or later. An engine stores a dead letter before it acknowledges
// the event, so each refused event is among them, or is delivered again.
func (p *partition) readRefused(ctx context.Context, from time.Time) (refused map[int64]bool, err error) {
	topic := p.bus.engine.topics.BusDeadLetter(p.bus.name)
	if err := p.bus.engine.client.EnsureSubscription(ctx, topic, model.DeliverSubscription, messaging.StartEarliest); err != nil {
		return nil, err
	}
	refused = make(map[int64]bool)
	err = p.readTopic(ctx, topic, from, func(d *messaging.Delivery) error {
		letter, ok := d.DeadLetter()
		if !ok || letter.Topic != p.topic {
			return nil
		}
		place, err := positionOf(letter.ID)
		if err != nil {
			return err
		}
		if refused[place] = true; int64(len(refused)) > p.window.capacity.most {
			return errors.New("the partition has more dead letters than engine.dedup_events")
		}
		return nil
	})
	return refused, err
}

// readTopic calls f for each message of a topic that was published at the given time or later.
func (p *partition) readTopic(ctx context.Context, topic string, from time.Time, f func(*messaging.Delivery) error) error {
	position := messaging.AtTime(from)
	r, err := p.bus.engine.client.Reader(ctx, messaging.ReaderConfig{
		Topic: topic, Name: "eventbridge_window", From: &position, PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10,
	})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error { return f(d) })
	return err
}
