package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
)

// Reader opens a reader. It returns when it knows the current end of each partition, and
// tries to find it until ctx ends; ctx bounds opening only. A configuration or a
// topic's name that can never be right is an error at once. Close the reader when done;
// closing the client ends it, too.
func (c *Client) Reader(ctx context.Context, cfg ReaderConfig) (*Reader, error) {
	return c.readers.Open(ctx, cfg)
}

// Reader reads a topic, all of its partitions, without a subscription that a broker keeps: the
// position is the caller's.
type Reader = read.Reader

// ReaderConfig says what to read, and from where.
type ReaderConfig = read.ReaderConfig

// Last returns the last message that topic, a topic without partitions or a single partition of one
// (name-partition-3), holds; nil when it holds none. It reads as an independent reader and changes
// nothing. It tries once, until ctx ends or the client is closed; it also ends so when retention
// has removed the message whose id the topic still gives as its last.
//
// When the topic's last entry brings no message, that is an error some seconds later, for what is
// last is then not known: the beginning of a message in chunks whose publisher is gone, a wrong
// checksum, a transaction's marker, or a message whose first chunk stands more than 1,000 entries,
// or a ledger, before. A topic that is not persistent is an error: it keeps nothing.
//
// Only what the broker had acknowledged counts as the last: another producer's message may be
// stored behind it while Last returns.
func (c *Client) Last(ctx context.Context, topic string) (*Delivery, error) {
	return c.readers.Last(ctx, topic)
}

// Partitions returns the names of the topics that make up topic: its own for one without
// partitions, which a broker that may creates when it is missing. It tries once, until
// ctx ends.
func (c *Client) Partitions(ctx context.Context, topic string) ([]string, error) {
	return c.cluster.Partitions(ctx, topic)
}
