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

// Last returns the last message of topic, a topic without partitions or a single partition
// (name-partition-3); nil when the topic holds no message. It reads as an independent reader and
// changes nothing. It tries once, until ctx ends or the client is closed.
//
// Last returns an error after some seconds if the topic delivers no message at the id that it gives
// as its last, because the last message is then unknown. Causes are: retention has removed the
// message; the beginning of a message in chunks whose publisher has ended; a wrong checksum; a
// transaction's marker; a message whose first chunk is more than 1,000 entries, or a ledger,
// before. A topic that is not persistent is an error: it stores nothing.
//
// Only messages that the broker had acknowledged count: another producer's message may be stored
// behind the last one while Last returns.
func (c *Client) Last(ctx context.Context, topic string) (*Delivery, error) {
	return c.readers.Last(ctx, topic)
}

// Partitions returns the names of the topics that make up topic: its own for one without
// partitions, which a broker that may creates when it is missing. It tries once, until
// ctx ends.
func (c *Client) Partitions(ctx context.Context, topic string) ([]string, error) {
	return c.cluster.Partitions(ctx, topic)
}
