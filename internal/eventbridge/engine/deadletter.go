package engine

import (
	"context"
	"maps"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// deadLetterWriter stores copies that a send topic does not accept in the subscriber's dead-letter
// topic, in the form of the processor's dead letters. Only one goroutine uses it.
type deadLetterWriter struct {
	engine     *Engine
	subscriber *model.Subscriber
	log        *zap.Logger
	metrics    *busMetrics
	publisher  *messaging.Publisher // nil: not open
	since      time.Time            // when it was opened
}

const connectingPause = 20 * time.Millisecond

// open opens the dead-letter topic unless it is open, and returns since when it is open. After an
// outage that is when the topic was available again.
func (b *deadLetterWriter) open(ctx context.Context) (since time.Time, err error) {
	for b.publisher != nil && b.publisher.Unhealthy() == nil {
		cut, connecting := b.publisher.LastDisconnect()
		if cut.After(b.since) {
			break
		}
		if !connecting {
			return b.since, nil
		}
		// Within two seconds the client knows whether the brokers are unavailable.
		if !backoff.Sleep(ctx, connectingPause) {
			return since, ctx.Err()
		}
	}
	b.close()
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	topic := b.engine.topics.DeadLetter(b.subscriber)
	if err := b.engine.deadLetterClient.EnsureSubscription(ctx, topic, model.DeliverSubscription, messaging.StartEarliest); err != nil {
		return since, err
	}
	p, err := b.engine.deadLetterClient.Publisher(ctx, topic, b.engine.profile("eventbridge_dead"))
	if err != nil {
		return since, err
	}
	b.publisher, b.since = p, time.Now()
	return b.since, nil
}

// put stores copies. The dead-letter topic must be open.
func (b *deadLetterWriter) put(ctx context.Context, entries []entry, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	deadLetters := make([]entry, len(entries))
	for i, e := range entries {
		deadLetters[i] = e
		deadLetters[i].record = b.deadLetter(e.record, reason)
	}
	_, _, err := publisher{b.publisher}.put(ctx, deadLetters)
	if err != nil {
		b.close()
		return err
	}
	b.metrics.deadLettered.Add(float64(len(entries)))
	b.log.Error("stored copies as dead letters", zap.Int("copies", len(entries)), zap.String("reason", reason))
	return nil
}

// deadLetter returns a copy in the form of the library's dead letters, so that it can be redriven.
func (b *deadLetterWriter) deadLetter(r *messaging.Record, reason string) *messaging.Record {
	const most = 1 << 10
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	properties := maps.Clone(r.Properties)
	properties[messaging.PropertyReason] = reason
	properties[messaging.PropertyAttempts] = "0"
	properties[messaging.PropertyFirstFailedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	properties[messaging.PropertyOriginTopic] = b.engine.topics.Send(b.subscriber)
	properties[messaging.PropertySubscription] = model.DeliverSubscription
	return &messaging.Record{Key: r.Key, Payload: r.Payload, EventTime: r.EventTime, Properties: properties}
}

func (b *deadLetterWriter) close() {
	if b.publisher == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = b.publisher.Close(ctx)
	b.publisher = nil
}
