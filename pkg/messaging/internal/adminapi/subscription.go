package adminapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Subscription manages one subscription of a topic over the brokers' admin API.
// [Topic.Subscription] makes one. It is a plain value, and it is safe for concurrent use. [Topic]
// says what limits and errors the methods have in common.
type Subscription struct {
	topic Topic
	name  string
}

// Name is the subscription's name, without its topic.
func (s Subscription) Name() string { return s.name }

// Create creates the subscription: what is published from at on waits for its consumers. The topic
// must exist, otherwise the error is [ErrNotFound]. A subscription that exists is [ErrExists] and
// stays as it is. [AtMessage] needs a topic without partitions, or one partition.
func (s Subscription) Create(ctx context.Context, at record.Position) error {
	return s.manage(ctx, "create", func(ctx context.Context, a *admin.Client) error {
		n, err := a.Partitions(ctx, s.topic.name) // a broker may create a topic that is missing
		if err != nil {
			return err
		}
		switch kind, id, when := record.KindOf(at); kind {
		case record.LatestKind:
			return a.CreateSubscription(ctx, s.topic.name, s.name, admin.Latest())
		case record.MessageKind:
			if n > 0 {
				return fmt.Errorf("the topic has %d partitions: name the one that has the message", n)
			}
			id, err := adminID(id)
			if err != nil {
				return err
			}
			return a.CreateSubscription(ctx, s.topic.name, s.name, id)
		case record.TimeKind:
			return s.createAtTime(ctx, a, when)
		default:
			return a.CreateSubscription(ctx, s.topic.name, s.name, admin.Earliest())
		}
	})
}

// createAtTime takes two requests, for the API has none for it. It begins at the earliest message,
// so that a failure between the two loses nothing.
func (s Subscription) createAtTime(ctx context.Context, a *admin.Client, t time.Time) error {
	if err := a.CreateSubscription(ctx, s.topic.name, s.name, admin.Earliest()); err != nil {
		return err
	}
	if err := a.ResetToTime(ctx, s.topic.name, s.name, t); err != nil {
		return fmt.Errorf("it is created and stands at the earliest message: %w", err)
	}
	return nil
}

// Delete deletes the subscription: its backlog is gone. While it has consumers that is [ErrBusy].
func (s Subscription) Delete(ctx context.Context) error {
	return s.manage(ctx, "delete", func(ctx context.Context, a *admin.Client) error {
		return a.DeleteSubscription(ctx, s.topic.name, s.name)
	})
}

// Reset moves the subscription: the message at to is the next, and what lies before it counts as
// acknowledged, what lies behind it does not. Consumers are disconnected, come back by themselves,
// and get what they had received and not acknowledged again, if it lies behind to. [AtMessage]
// needs a topic without partitions, or one partition.
//
// To [Latest] is no more than acknowledging all that the topic has: consumers stay connected and
// may still handle what they had received.
func (s Subscription) Reset(ctx context.Context, to record.Position) error {
	return s.manage(ctx, "reset", func(ctx context.Context, a *admin.Client) error {
		switch kind, id, when := record.KindOf(to); kind {
		case record.LatestKind:
			return a.SkipAll(ctx, s.topic.name, s.name)
		case record.MessageKind:
			id, err := adminID(id)
			if err != nil {
				return err
			}
			return a.ResetToID(ctx, s.topic.name, s.name, id)
		case record.TimeKind:
			return a.ResetToTime(ctx, s.topic.name, s.name, when)
		default:
			return a.ResetToTime(ctx, s.topic.name, s.name, time.UnixMilli(0))
		}
	})
}

// Skip acknowledges the first n entries that are not acknowledged. A batch of messages is one
// entry. The topic must be one without partitions, or one partition.
func (s Subscription) Skip(ctx context.Context, n int) error {
	return s.manage(ctx, "skip messages of", func(ctx context.Context, a *admin.Client) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("the number must be from 1 to %d, got %d", math.MaxInt32, n)
		}
		return a.Skip(ctx, s.topic.name, s.name, n)
	})
}

// MaxPeek is the greatest number of messages that one [Subscription.Peek] returns.
const MaxPeek = 1000

// PeekedMessage is a message that waits in a subscription, as far as the admin API gives it.
type PeekedMessage struct {
	ID          record.MessageID
	Payload     []byte // decompressed
	Properties  map[string]string
	Key         string
	PublishTime time.Time
	EventTime   time.Time // zero: the publisher gave none
	Producer    string    // the publisher's name
}

// Peek returns the first n messages that are not acknowledged and leaves them as they are: n of at
// most [MaxPeek]. Fewer come back where fewer wait, and once their payloads have 16 MiB together.
// Each entry takes a request. The topic must be one without partitions, or one partition.
func (s Subscription) Peek(ctx context.Context, n int) (messages []PeekedMessage, err error) {
	err = s.manage(ctx, "peek at", func(ctx context.Context, a *admin.Client) error {
		if n < 1 || n > MaxPeek {
			return fmt.Errorf("the number must be from 1 to %d, got %d", MaxPeek, n)
		}
		found, err := a.Peek(ctx, s.topic.name, s.name, n)
		if err != nil {
			return err
		}
		messages = make([]PeekedMessage, len(found))
		for i, m := range found {
			messages[i] = PeekedMessage{
				ID: peekedID(m), Payload: m.Payload, Properties: m.Properties, Key: m.Key,
				PublishTime: m.PublishTime, EventTime: m.EventTime, Producer: m.Producer,
			}
		}
		return nil
	})
	return messages, err
}

// Backlog returns how many messages the subscription has not acknowledged, all partitions together,
// as [Consumer.Backlog] counts them. A topic that does not have the subscription is [ErrNotFound].
func (s Subscription) Backlog(ctx context.Context) (messages int64, err error) {
	return fetch(ctx, s, "backlog of", func(ctx context.Context, a *admin.Client) (int64, error) {
		return a.Backlog(ctx, s.topic.name, s.name)
	})
}

func (s Subscription) manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error {
	return s.topic.manage(ctx, what+" subscription "+s.name+" of", func(ctx context.Context, a *admin.Client) error {
		if s.name == "" {
			return errors.New("the subscription must have a name")
		}
		return do(ctx, a)
	})
}
