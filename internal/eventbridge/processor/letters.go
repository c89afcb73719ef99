package processor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// DeadLetter is an event that was given up.
type DeadLetter struct {
	// Event as JSON; null where it is none.
	Event json.RawMessage `json:"event"`
	// Reason why it was given up, after so many attempts.
	Reason      string    `json:"reason"`
	Attempts    int       `json:"attempts"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	GivenUp     time.Time `json:"given_up,omitzero"`
}

// DeadLetters returns the oldest n dead letters of a subscriber, at most [messaging.MaxPeek], and leaves them where they are. It takes
// the brokers' admin API: without its address the error is messaging.ErrNoAdminURL.
func (p *Processor) DeadLetters(ctx context.Context, bus, subscriber string, n int) ([]DeadLetter, error) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return nil, err
	}
	found, err := p.client.Topic(p.topics.DeadLetter(s)).Subscription(registry.DeliverSubscription).Peek(ctx, n)
	if errors.Is(err, messaging.ErrNotFound) {
		return nil, nil // there has been none yet
	}
	letters := make([]DeadLetter, 0, len(found))
	for _, m := range found {
		letters = append(letters, letterOf(m))
	}
	return letters, err
}

func letterOf(m messaging.PeekedMessage) DeadLetter {
	d := messaging.Delivery{Properties: m.Properties, Payload: m.Payload}
	l := DeadLetter{GivenUp: m.PublishTime}
	if about, ok := d.DeadLetter(); ok {
		l.Reason, l.Attempts, l.FirstFailed = about.Reason, about.Attempt, about.FirstFailed
	}
	if json.Valid(m.Payload) {
		l.Event = m.Payload
	}
	return l
}
