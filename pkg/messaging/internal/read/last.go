package read

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// OnlyPartition is the name of topic's only partition. It asks until ctx ends, or until an answer
// says that a publisher that owns topic cannot be opened.
func (c *Readers) OnlyPartition(ctx context.Context, topic string) (string, error) {
	if err := record.Keeps(topic); err != nil {
		return "", err
	}
	var topics []string
	asking, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	err := cluster.Insist(asking, c.Log, func() (err error) {
		topics, err = cluster.CallWithTimeout(asking, c.Cluster, func() ([]string, error) {
			return c.Producers.TopicPartitions(topic)
		}, nil)
		if err != nil {
			if final := cluster.OpeningFailure(err, true); final != nil {
				giveUp(final) // as a publisher's opening does
			}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return theOnly(topics)
}

// theOnly is the one of a topic's partitions, or of the topic without any.
func theOnly(topics []string) (string, error) {
	if len(topics) > 1 {
		return "", fmt.Errorf("%d partitions: name one", len(topics))
	}
	return topics[0], nil
}

// Last is the client's method of that name.
func (c *Readers) Last(ctx context.Context, topic string) (*record.Delivery, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	ctx, done := clientquirks.EitherEnds(ctx, c.Life)
	defer done()
	d, err := clientquirks.CallUntil(ctx, func() (*record.Delivery, error) {
		defer c.Leave()
		return c.last(ctx, topic)
	}, nil)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("messaging: last message of %s: %w", topic, err)
	}
	return d, nil
}

func (c *Readers) last(ctx context.Context, topic string) (*record.Delivery, error) {
	if err := record.Keeps(topic); err != nil {
		return nil, err
	}
	topics, err := c.Consumers.TopicPartitions(topic)
	if err != nil {
		return nil, err
	}
	if topic, err = theOnly(topics); err != nil {
		return nil, err
	}
	// A look at the end, then a reader that starts there: the underlying client can do
	// both in one, by a seek, for which the broker closes its consumer once.
	end, err := c.lastID(topic, false)
	if err != nil || end.EntryID() < 0 {
		return nil, err
	}
	// The last entry is enough, unless it is a message's last chunk.
	for entries := int64(1); entries < maxLastEntries && entries <= end.EntryID(); entries *= 10 {
		d, err := c.lastOf(ctx, topic, end, entries, c.Waits.Unshown)
		if !errors.Is(err, errUnshown) {
			return d, err
		}
	}
	return c.lastOf(ctx, topic, end, maxLastEntries, c.Waits.Nothing)
}

// maxLastEntries is how many entries Last looks back at most.
const maxLastEntries = 1000

// lastOf reads the last entries, up to end, and returns the message that ends there. The error is
// errUnshown if no message arrives within wait.
func (c *Readers) lastOf(ctx context.Context, topic string, end pulsar.MessageID, entries int64, wait time.Duration) (*record.Delivery, error) {
	// The id of a whole entry, the one before, leaves open no place in a batch.
	start := pulsar.NewMessageID(end.LedgerID(), max(end.EntryID()-entries, -1), -1, end.PartitionIdx())
	r, err := c.look(topic, start, false, 1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		m, err := nextWithin(ctx, r, wait)
		if err != nil {
			return nil, err
		}
		id := m.ID()
		if id.LedgerID() > end.LedgerID() || id.LedgerID() == end.LedgerID() && id.EntryID() > end.EntryID() {
			return nil, errPassed
		}
		if id.LedgerID() == end.LedgerID() && id.EntryID() == end.EntryID() && id.BatchIdx() >= id.BatchSize()-1 {
			var l record.Slab
			return l.Delivery(m), nil
		}
	}
}

// lastID is the id of topic's last message, of those that compaction has left if compacted is
// set; its entry is -1 when there is none.
func (c *Readers) lastID(topic string, compacted bool) (pulsar.MessageID, error) {
	r, err := c.look(topic, pulsar.LatestMessageID(), compacted, 1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.GetLastMessageID()
}

// errPassed: the topic has been trimmed between the two looks at its end.
var errPassed = errors.New("it was removed while being read")

// errUnshown: the underlying client shows nothing of the last entry.
var errUnshown = errors.New("its last entry brings no message")
