package engine

import (
	"context"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// burier gives copies that a send topic does not take to the subscriber's dead-letter topic, as the processor's
// dead letters. It belongs to one goroutine.
type burier struct {
	engine     *Engine
	subscriber *registry.Subscriber
	log        *zap.Logger
	metrics    *busMetrics
	publisher  *messaging.Publisher // nil: it is not open
	since      time.Time            // when it was opened
}

const connectingPause = 20 * time.Millisecond

// open opens the dead-letter topic, unless it is open, and says since when it is. A topic that was away is open from when it is there again.
func (b *burier) open(ctx context.Context) (since time.Time, err error) {
	for b.publisher != nil && b.publisher.Trouble() == nil {
		cut, connecting := b.publisher.CutOff()
		if cut.After(b.since) {
			break
		}
		if !connecting {
			return b.since, nil
		}
		select { // whether the brokers are away is known within two seconds
		case <-time.After(connectingPause):
		case <-ctx.Done():
			return since, ctx.Err()
		}
	}
	b.close()
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	topic := b.engine.topics.DeadLetter(b.subscriber)
	if err := b.engine.letters.EnsureSubscription(ctx, topic, registry.DeliverSubscription, messaging.StartEarliest); err != nil {
		return since, err
	}
	p, err := b.engine.letters.Publisher(ctx, topic, b.engine.profile("eventbridge_dead"))
	if err != nil {
		return since, err
	}
	b.publisher, b.since = p, time.Now()
	return b.since, nil
}

// put is called when the dead-letter topic is open.
func (b *burier) put(ctx context.Context, entries []entry, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	letters := make([]entry, len(entries))
	for i, e := range entries {
		letters[i] = e
		letters[i].record = b.letter(e.record, reason)
	}
	_, _, err := publisher{b.publisher}.put(ctx, letters)
	if err != nil {
		b.close()
		return err
	}
	b.metrics.buried.Add(float64(len(entries)))
	b.log.Error("copies are dead letters now", zap.Int("copies", len(entries)), zap.String("reason", reason))
	return nil
}

// letter is a copy as the library makes dead letters, so that they can be redriven.
func (b *burier) letter(r *messaging.Record, reason string) *messaging.Record {
	const most = 1 << 10
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	properties := maps.Clone(r.Properties)
	properties[messaging.PropertyReason] = reason
	properties[messaging.PropertyAttempts] = "0"
	properties[messaging.PropertyFirstFailedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	properties[messaging.PropertyOriginTopic] = b.engine.topics.Send(b.subscriber)
	properties[messaging.PropertySubscription] = registry.DeliverSubscription
	return &messaging.Record{Key: r.Key, Payload: r.Payload, EventTime: r.EventTime, Properties: properties}
}

func (b *burier) close() {
	if b.publisher == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = b.publisher.Close(ctx)
	b.publisher = nil
}
