package engine

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// clocksApart is how far the clocks of publishers may differ: publish times do not always ascend.
const clocksApart = time.Minute

// rebuild reads the partition to fill the window: with the events before the first delivered one,
// which was published at the given time, and with the events after it. Some of these may have been
// acknowledged, and are not delivered. Events that the topic does not keep, or that are not read in
// time, are unknown: a duplicate of one may be let through.
func (p *partition) rebuild(ctx context.Context, published time.Time) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.bus.engine.cfg.DedupRebuild)
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
	position := messaging.AtTime(from)
	r, err := p.bus.engine.client.Reader(ctx, messaging.ReaderConfig{
		Topic: p.topic, Name: "eventbridge_window", From: &position, PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10,
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		e, err := event.Decode(d.Payload)
		if err != nil {
			return nil //nolint:nilerr // it is a dead letter
		}
		place, err := positionOf(d.ID)
		if err != nil {
			return err
		}
		forgotten := p.window.ahead(identityOf(e.Source, e.ID), place, d.PublishTime)
		p.bus.metrics.forgot.Add(float64(forgotten))
		n++
		return nil
	})
	return n, err
}
