package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Backlog is what a subscriber has not received yet.
type Backlog struct {
	// Events counts the events in the send topic, the topic of replays and the topic of retries, as
	// brokers do: a batch counts as one.
	Events int64 `json:"events"`
	// Oldest is when the oldest of these events was stored for the subscriber; zero if there is
	// none. Of the events that wait for another attempt, the one that failed first counts as the
	// oldest.
	Oldest time.Time `json:"oldest,omitzero"`
	// DeadLetters counts the events that wait for a redrive.
	DeadLetters int64 `json:"dead_letters"`
}

// Backlog asks the brokers' admin API what a subscriber has not received yet. Without its address
// the error is messaging.ErrNoAdminURL.
func (p *Processor) Backlog(ctx context.Context, bus, subscriber string) (b Backlog, err error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return b, err
	}
	topics := p.topics
	for _, topic := range []string{topics.Send(s), topics.Replay(s), topics.Retry(s)} {
		n, err := p.waiting(ctx, topic)
		if err != nil {
			return b, err
		}
		b.Events += n
		if n == 0 {
			continue
		}
		oldest, err := p.oldest(ctx, topic)
		if err != nil {
			return b, err
		}
		if b.Oldest.IsZero() || !oldest.IsZero() && oldest.Before(b.Oldest) {
			b.Oldest = oldest
		}
	}
	b.DeadLetters, err = p.waiting(ctx, topics.DeadLetter(s))
	return b, err
}

// waiting returns the backlog of a topic, 0 if nothing was published to it yet.
func (p *Processor) waiting(ctx context.Context, topic string) (int64, error) {
	n, err := p.client.Topic(topic).Subscription(model.DeliverSubscription).Backlog(ctx)
	if errors.Is(err, messaging.ErrNotFound) {
		return 0, nil
	}
	return n, err
}

// oldest returns when the first message that is not acknowledged was published, over all
// partitions. For a copy on the topic of retries this is when the original was published.
func (p *Processor) oldest(ctx context.Context, name string) (oldest time.Time, err error) {
	partitions, err := p.client.Partitions(ctx, name)
	if err != nil {
		return oldest, err
	}
	for _, partition := range partitions {
		first, err := p.client.Topic(partition).Subscription(model.DeliverSubscription).Peek(ctx, 1)
		if err != nil {
			return oldest, err
		}
		if len(first) == 0 {
			continue
		}
		published := first[0].PublishTime
		if t, err := time.Parse(time.RFC3339Nano, first[0].Properties[messaging.PropertyOriginPublishedAt]); err == nil {
			published = t
		}
		if oldest.IsZero() || published.Before(oldest) {
			oldest = published
		}
	}
	return oldest, nil
}
