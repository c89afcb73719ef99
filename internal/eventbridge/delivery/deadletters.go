package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// DeadLetter is an event that was given up.
type DeadLetter struct {
	// Event is the event as JSON. It is null if the message is not JSON; Bytes are the message
	// then.
	Event json.RawMessage `json:"event"`
	Bytes []byte          `json:"bytes,omitempty"`
	// Reason is why the event was given up, after that many Attempts.
	Reason      string    `json:"reason"`
	Attempts    int       `json:"attempts"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	GivenUp     time.Time `json:"given_up,omitzero"`
}

// DeadLetters returns the oldest n dead letters of a subscriber, at most [messaging.MaxPeek].
// Without a subscriber it returns those of the bus: events that no engine can match, or whose
// copies brokers refuse. The dead letters stay where they are. DeadLetters needs the brokers' admin
// API: without its address the error is messaging.ErrNoAdminURL.
func (p *Processor) DeadLetters(ctx context.Context, bus, subscriber string, n int) ([]DeadLetter, error) {
	_, topic, err := p.holder(bus, subscriber)
	if err != nil {
		return nil, err
	}
	found, err := p.client.Topic(topic).Subscription(model.DeliverSubscription).Peek(ctx, n)
	if errors.Is(err, messaging.ErrNotFound) {
		return nil, nil // there has been none yet
	}
	deadLetters := make([]DeadLetter, 0, len(found))
	for _, m := range found {
		d := messaging.Delivery{Properties: m.Properties, Payload: m.Payload}
		l := DeadLetter{GivenUp: m.PublishTime}
		if original, ok := d.DeadLetter(); ok {
			l.Reason, l.Attempts, l.FirstFailed = original.Reason, original.Attempt, original.FirstFailed
		}
		if json.Valid(m.Payload) {
			l.Event = m.Payload
		} else {
			l.Bytes = m.Payload
		}
		deadLetters = append(deadLetters, l)
	}
	return deadLetters, err
}
