package adminapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

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

// wireID is a message's place in requests. A Batch of -1 means the whole entry.
type wireID struct {
	Ledger    int64 `json:"ledgerId"`
	Entry     int64 `json:"entryId"`
	Partition int32 `json:"partitionIndex"`
	Batch     int32 `json:"batchIndex"`
}

// wireIDOf is the place where reading begins to have all of a message.
func wireIDOf(id record.MessageID) (wireID, error) {
	if err := record.InTopic(id); err != nil {
		return wireID{}, err
	}
	from := record.StartOf(id)
	return wireID{Ledger: from.Ledger, Entry: from.Entry(), Partition: int32(id.Partition()), Batch: -1}, nil
}

// Create creates the subscription: what is published from at on waits for its consumers. The topic
// must exist, otherwise the error is [ErrNotFound]. A subscription that exists is [ErrExists] and
// stays as it is. [AtMessage] needs a topic without partitions, or one partition.
func (s Subscription) Create(ctx context.Context, at record.Position) error {
	return s.manage(ctx, "create", func(ctx context.Context, a *client) error {
		n, err := a.partitions(ctx, s.topic.name) // a broker may create a topic that is missing
		if err != nil {
			return err
		}
		kind, message, when := record.KindOf(at)
		id := wireID{Ledger: -1, Entry: -1, Partition: -1, Batch: -1} // the earliest message
		switch {
		case kind == record.LatestKind:
			id.Ledger, id.Entry = math.MaxInt64, math.MaxInt64
		case kind == record.MessageKind && n > 0:
			return fmt.Errorf("the topic has %d partitions: name the one that has the message", n)
		case kind == record.MessageKind:
			if id, err = wireIDOf(message); err != nil {
				return err
			}
		}
		err = as(ErrExists, a.do(ctx, http.MethodPut, s.path(), id, nil), http.StatusConflict)
		if err != nil || kind != record.TimeKind {
			return err
		}
		// The API has no request for a time. The subscription begins at the earliest message, so
		// that a failure between the two requests loses nothing.
		if err := s.resetToTime(ctx, a, when); err != nil {
			return fmt.Errorf("the subscription was created at the earliest message: %w", err)
		}
		return nil
	})
}

// Delete deletes the subscription: its backlog is gone. While it has consumers that is [ErrBusy].
func (s Subscription) Delete(ctx context.Context) error {
	return s.manage(ctx, "delete", func(ctx context.Context, a *client) error {
		err := a.do(ctx, http.MethodDelete, s.path(), nil, nil)
		return as(ErrBusy, err, http.StatusPreconditionFailed, http.StatusConflict)
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
	return s.manage(ctx, "reset", func(ctx context.Context, a *client) error {
		switch kind, message, when := record.KindOf(to); kind {
		case record.LatestKind:
			return a.do(ctx, http.MethodPost, s.path()+"/skip_all", nil, nil)
		case record.MessageKind:
			id, err := wireIDOf(message)
			if err != nil {
				return err
			}
			return as(ErrBusy, a.do(ctx, http.MethodPost, s.path()+"/resetcursor", id, nil), http.StatusConflict)
		case record.TimeKind:
			return s.resetToTime(ctx, a, when)
		default:
			return s.resetToTime(ctx, a, time.UnixMilli(0))
		}
	})
}

func (s Subscription) resetToTime(ctx context.Context, a *client, t time.Time) error {
	path := s.path() + "/resetcursor/" + strconv.FormatInt(t.UnixMilli(), 10)
	return as(ErrBusy, a.do(ctx, http.MethodPost, path, nil, nil), http.StatusConflict)
}

// Skip acknowledges the first n entries that are not acknowledged. A batch of messages is one
// entry. The topic must be one without partitions, or one partition.
func (s Subscription) Skip(ctx context.Context, n int) error {
	return s.manage(ctx, "skip messages of", func(ctx context.Context, a *client) error {
		if n < 1 || n > math.MaxInt32 {
			return fmt.Errorf("the number must be from 1 to %d, got %d", math.MaxInt32, n)
		}
		return a.do(ctx, http.MethodPost, s.path()+"/skip/"+strconv.Itoa(n), nil, nil)
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
	err = s.manage(ctx, "peek at", func(ctx context.Context, a *client) (err error) {
		if n < 1 || n > MaxPeek {
			return fmt.Errorf("the number must be from 1 to %d, got %d", MaxPeek, n)
		}
		messages, err = a.peek(ctx, s, n)
		return err
	})
	return messages, err
}

// Backlog returns how many messages the subscription has not acknowledged, all partitions together,
// as [Consumer.Backlog] counts them. A topic that does not have the subscription is [ErrNotFound].
func (s Subscription) Backlog(ctx context.Context) (messages int64, err error) {
	return fetch(ctx, s, "backlog of", func(ctx context.Context, a *client) (int64, error) {
		return a.backlog(ctx, s.topic.name, s.name)
	})
}

func (s Subscription) path() string {
	return topicPath(s.topic.name) + "/subscription/" + url.PathEscape(s.name)
}

func (s Subscription) manage(ctx context.Context, what string, do func(context.Context, *client) error) error {
	return s.topic.manage(ctx, what+" subscription "+s.name+" of", func(ctx context.Context, a *client) error {
		if s.name == "" {
			return errors.New("the subscription must have a name")
		}
		return do(ctx, a)
	})
}
