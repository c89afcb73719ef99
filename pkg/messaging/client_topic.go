package messaging

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// onlyPartition is the name of topic's only partition. It asks until ctx ends, or until an answer
// says that a publisher that owns topic cannot be opened.
func (c *Readers) onlyPartition(ctx context.Context, topic string) (string, error) {
	if err := keeps(topic); err != nil {
		return "", err
	}
	var topics []string
	asking, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	err := insist(asking, c.log, func() (err error) {
		topics, err = callWithTimeout(asking, c.Cluster, func() ([]string, error) { return c.producers.TopicPartitions(topic) }, nil)
		if err != nil {
			if final := openingFailure(err, true); final != nil {
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

// Last returns the last message that topic, a topic without partitions or a single
// partition of one (name-partition-3), holds; nil when it holds none. It reads as an
// independent reader and changes nothing. It tries once, until ctx ends or the client is
// closed; it also ends so when retention has removed the message whose id the topic still
// gives as its last.
//
// When the topic's last entry brings no message, that is an error some seconds later, for what is
// last then nobody knows: the beginning of a message in chunks whose publisher is gone, a message
// whose checksum is wrong, a transaction's marker, or a message whose first chunk stands more than
// 1,000 entries, or a ledger, before. A topic that is not persistent is an error, for it keeps
// nothing.
//
// Only what the broker had acknowledged counts as the last: what another producer has
// under way may be stored behind it while Last returns.
func (c *Readers) Last(ctx context.Context, topic string) (*Delivery, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	ctx, done := eitherEnds(ctx, c.life)
	defer done()
	d, err := callUntil(ctx, func() (*Delivery, error) {
		defer c.leave()
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

func (c *Readers) last(ctx context.Context, topic string) (*Delivery, error) {
	if err := keeps(topic); err != nil {
		return nil, err
	}
	topics, err := c.consumers.TopicPartitions(topic)
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
	for entries := int64(1); entries <= 1000; entries *= 10 {
		d, err := c.lastOf(ctx, topic, end, entries)
		if !errors.Is(err, errUnshown) {
			return d, err
		}
		if end.EntryID() < entries { // it was the whole ledger
			break
		}
	}
	return nil, errUnshown
}

// lastOf reads the last entries, up to end, and returns the message that ends there.
func (c *Readers) lastOf(ctx context.Context, topic string, end pulsar.MessageID, entries int64) (*Delivery, error) {
	r, err := c.consumers.CreateReader(pulsar.ReaderOptions{
		Topic: topic,
		// Behind the entry before: the id of a whole entry leaves no question of
		// where in its batch to begin.
		StartMessageID:    pulsar.NewMessageID(end.LedgerID(), max(end.EntryID()-entries, -1), -1, end.PartitionIdx()),
		ReceiverQueueSize: 1,
		BackoffPolicyFunc: newBackoff,
	})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		waiting, cancel := context.WithTimeoutCause(ctx, c.waits.unshown, errUnshown)
		m, err := r.Next(waiting)
		if err != nil && waiting.Err() != nil {
			err = context.Cause(waiting)
		}
		cancel()
		if err != nil {
			return nil, err
		}
		id := m.ID()
		if id.LedgerID() > end.LedgerID() || id.LedgerID() == end.LedgerID() && id.EntryID() > end.EntryID() {
			return nil, errPassed
		}
		if id.LedgerID() == end.LedgerID() && id.EntryID() == end.EntryID() && id.BatchIdx() >= id.BatchSize()-1 {
			var l slab
			return l.delivery(m), nil
		}
	}
}

// lastID is the id of topic's last message, of those that compaction has left if compacted is
// set; its entry is -1 when there is none.
func (c *Readers) lastID(topic string, compacted bool) (pulsar.MessageID, error) {
	r, err := c.consumers.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.LatestMessageID(), ReadCompacted: compacted,
		ReceiverQueueSize: 1, BackoffPolicyFunc: newBackoff,
	})
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
