package processor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// DeadLetter is an event that was given up.
type DeadLetter struct {
	// Event as JSON; null where it is none: then Bytes are what it is.
	Event json.RawMessage `json:"event"`
	Bytes []byte          `json:"bytes,omitempty"`
	// Reason why it was given up, after so many attempts.
	Reason      string    `json:"reason"`
	Attempts    int       `json:"attempts"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	GivenUp     time.Time `json:"given_up,omitzero"`
}

// DeadLetters returns the oldest n dead letters of a subscriber, or, without one, of the bus: events that no engine can match, or whose copies
// brokers refuse. There are at most [messaging.MaxPeek], and they stay where they are. It takes the brokers' admin API: without its address the error is messaging.ErrNoAdminURL.
func (p *Processor) DeadLetters(ctx context.Context, bus, subscriber string, n int) ([]DeadLetter, error) {
	_, topic, err := p.holder(bus, subscriber)
	if err != nil {
		return nil, err
	}
	found, err := p.client.Topic(topic).Subscription(registry.DeliverSubscription).Peek(ctx, n)
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
	} else {
		l.Bytes = m.Payload
	}
	return l
}

// holder returns what the jobs of a subscriber are kept by, and its topic of dead letters; without a subscriber those of the bus.
func (p *Processor) holder(bus, subscriber string) (key, letters string, err error) {
	if subscriber == "" {
		if p.source.Snapshot().Bus(bus) == nil {
			return "", "", fmt.Errorf("there is no bus %s: %w", bus, ErrNoSubscriber)
		}
		return busJob(bus), p.topics.Unmatched(bus), nil
	}
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return "", "", err
	}
	return s.UID, p.topics.DeadLetter(s), nil
}

// busJob is what the job of a bus is kept by. It is no UID.
func busJob(bus string) string { return "bus/" + bus }
