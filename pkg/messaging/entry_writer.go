package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
)

// EntryWriter takes topic, one without partitions or a single partition of one
// (name-partition-3), for itself and finds out what it holds. It tries to open a producer until
// ctx ends or the client closes, also while another writer has the topic: every 2 seconds at
// least. Then it reads the last message once, which may take 10 seconds. ctx bounds opening only.
// Close the writer when done.
//
// It fails at once when waiting does not help: without Name or Position, for a topic with several
// partitions, with an error of Position, and with the errors of [Client.Publisher] but [ErrOwned].
// When the last message cannot be read, another call may succeed.
func (c *Client) EntryWriter(ctx context.Context, topic string, cfg EntryWriterConfig) (*EntryWriter, error) {
	return c.publishers.OpenWriter(ctx, topic, cfg)
}

// EntryWriter stores what comes from a source that numbers it, so that each position of the source
// is stored once in one partition, whatever ends in between: the process, the broker, connections.
type EntryWriter = publish.EntryWriter

// EntryWriterConfig says how to write.
type EntryWriterConfig = publish.EntryWriterConfig

const (
	// MaxEntryBytes is how large an entry of several records may be, by EntryBytes: half of what the
	// library batches.
	MaxEntryBytes = publish.MaxEntryBytes
)

// EntryBytes is at least what r takes in an entry before compression.
func EntryBytes(r *Record) int { return publish.EntryBytes(r) }
