package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
)

// Publisher opens a publisher for topic. It returns once every partition has a producer, and tries
// until ctx ends or the client closes ([ErrClosed]); ctx bounds opening only. It fails at once when
// waiting does not help: [ErrInvalidTopic], [ErrAuthorization], [ErrTopicNotFound],
// [ErrTopicTerminated], and [ErrOwned] with [ExclusiveOwnership]. Close the publisher when done.
func (c *Client) Publisher(ctx context.Context, topic string, profile Profile) (*Publisher, error) {
	return c.publishers.Open(ctx, topic, profile)
}

// Publisher publishes to one topic.
type Publisher = publish.Publisher

// Profile is how a publisher trades latency for throughput.
type Profile = publish.Profile

// Business is the profile for callers that wait for each record to be stored: group commit, so
// that a lone record is sent at once and concurrent callers share entries.
func Business() Profile { return publish.Business() }

// Ops is the profile for many records by Publisher.PublishAsync: it is Business without group
// commit, with entries of up to 10,000 records and up to 100,000 records pending.
func Ops() Profile { return publish.Ops() }

// Compression is how a publisher compresses its batches.
type Compression = publish.Compression

// The profiles use LZ4, which costs little CPU time.
const (
	LZ4           = publish.LZ4
	ZSTD          = publish.ZSTD
	NoCompression = publish.NoCompression
)

// Routing picks the partition of a record.
type Routing = publish.Routing

const (
	// RouteKeyHash sends a key's records to one partition by Java's String hash,
	// as Pulsar's other clients do, and records without a key round robin.
	RouteKeyHash = publish.RouteKeyHash
	// RouteRoundRobin spreads records evenly in runs long enough to batch well,
	// and passes over a partition whose queue is full.
	RouteRoundRobin = publish.RouteRoundRobin
	// RouteExplicit sends a record to its Partition.
	RouteExplicit = publish.RouteExplicit
)

// Admission is what happens to a record when the queue is full.
type Admission = publish.Admission

const (
	// Block waits for room until the caller's context ends.
	Block = publish.Block
	// FailFast fails the record with ErrQueueFull.
	FailFast = publish.FailFast
)

// Ownership says whether a publisher shares its topic with others, and so what becomes of it when
// it loses a producer. A producer is lost when the broker closes or fences it, when it has no
// acknowledgement within AckTimeout, and with [ErrDeduplicated]; an owner's also when its
// connection breaks.
type Ownership = publish.Ownership

const (
	// SharedOwnership lets many publishers write. A lost producer is replaced, and unacknowledged
	// records are sent again: those that the broker had stored are stored twice.
	SharedOwnership = publish.SharedOwnership
	// ExclusiveOwnership makes the publisher the only one. Opening fails with ErrOwned while
	// another publisher has the topic. A lost producer is final, because another publisher may have
	// written since: unacknowledged and later records of the partition fail with ErrProducerLost.
	// Find the last stored message with [Client.Last], and open another publisher. See
	// [Publisher.Owned].
	ExclusiveOwnership = publish.ExclusiveOwnership
	// WaitForOwnership is ExclusiveOwnership whose opening waits until the topic has no other
	// publisher. When the opening's context ends first, the broker keeps the place in the queue
	// until its turn comes.
	WaitForOwnership = publish.WaitForOwnership
	// NamedOwnership makes the publisher the only one of its ProducerName, which must be set;
	// others may write, too. In all else it is ExclusiveOwnership. It is for topics that two
	// clusters replicate to each other: a broker (Pulsar 4.0) admits either an exclusive producer
	// or another cluster's replicator.
	NamedOwnership = publish.NamedOwnership
)

// EntryWriter takes topic, one without partitions or a single partition of one
// (name-partition-3), for itself and finds out what it holds. It tries to open a producer until
// ctx ends or the client closes, also while another writer has the topic. Then it reads the last
// message once, which may take 10 seconds. ctx bounds opening only. Close the writer when done.
//
// It fails at once when waiting does not help: without Name or Position, for a topic with several
// partitions, with an error of Position, and with the errors of [Client.Publisher] but [ErrOwned].
// When the last message cannot be read, another call may succeed.
func (c *Client) EntryWriter(ctx context.Context, topic string, cfg EntryWriterConfig) (*EntryWriter, error) {
	return c.publishers.OpenWriter(ctx, topic, cfg)
}

// EntryWriter stores the messages of a source that numbers them, so that each position of the
// source is stored once in one partition, even if the process, the broker or connections fail in
// between.
type EntryWriter = publish.EntryWriter

// EntryWriterConfig says how to write.
type EntryWriterConfig = publish.EntryWriterConfig

// MaxEntryBytes is how large an entry of several records may be, by EntryBytes: half of what the
// library batches.
const MaxEntryBytes = publish.MaxEntryBytes

// EntryBytes is at least what r takes in an entry before compression.
func EntryBytes(r *Record) int { return publish.EntryBytes(r) }
