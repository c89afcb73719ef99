package publish

import (
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

type (
	// Compression is how a publisher compresses its batches.
	Compression string
	// Routing picks the partition of a record.
	Routing string
	// Admission is what happens to a record when the queue is full.
	Admission string
	// Ownership says whether a publisher shares its topic with others.
	Ownership string
)

// What the values mean is written in package messaging, which exports them.
const (
	LZ4           Compression = "lz4"
	ZSTD          Compression = "zstd"
	NoCompression Compression = "none"

	RouteKeyHash    Routing = "key_hash"
	RouteRoundRobin Routing = "round_robin"
	RouteExplicit   Routing = "explicit"

	Block    Admission = "block"
	FailFast Admission = "fail_fast"

	SharedOwnership    Ownership = "shared"
	ExclusiveOwnership Ownership = "exclusive"
	WaitForOwnership   Ownership = "wait"
	NamedOwnership     Ownership = "named"
)

// Profile is how a publisher trades latency for throughput. Start from [Business] or
// [Ops] and change single fields: the zero value of a field is not its default.
type Profile struct {
	// Name is the label "profile" of the metrics. Use few names. It must be set.
	Name string `yaml:"name"`
	// Linger is the longest time that records gather while an entry of their partition is in
	// flight. They are sent earlier when that entry is acknowledged or the next entry is full, and
	// at once if nothing is in flight. If more than eight partitions of the client have published
	// in the last seconds, Linger is multiplied by an eighth of their number. At least 1 ms is
	// used.
	Linger time.Duration `yaml:"linger"`
	// GroupCommit makes records gather only while their own partition has an entry in flight.
	// Without it they also gather while four other partitions have entries in flight: entries are
	// larger and waits longer.
	GroupCommit bool `yaml:"group_commit"`
	// BatchRecords is the number of records that closes a batch. 1 switches batching off, for
	// records with DeliverAt and for topics with Key_Shared subscribers: brokers dispatch a batch
	// by the key of its first record.
	BatchRecords int `yaml:"batch_records"`
	// BatchBytes is the number of bytes before compression that closes a batch. At most 1 MiB:
	// brokers refuse a batch above their limit as a whole.
	BatchBytes int `yaml:"batch_bytes"`
	// Compression is the compression of each batch: lz4, zstd or none.
	Compression Compression `yaml:"compression"`
	// MaxPendingRecords bounds the records that are accepted and not yet acknowledged. Each
	// partition has an equal share.
	MaxPendingRecords int `yaml:"max_pending_records"`
	// MaxPendingBytes bounds the bytes of records that are accepted and not yet acknowledged. Each
	// partition has an equal share; a larger record is accepted alone.
	MaxPendingBytes int64 `yaml:"max_pending_bytes"`
	// Admission says what happens to a record when the queue is full: block (wait) or fail_fast (an
	// error).
	Admission Admission `yaml:"admission"`
	// Routing says how the partition of a record is chosen: key_hash, round_robin or explicit.
	Routing Routing `yaml:"routing"`
	// AckTimeout bounds the time without an acknowledgement for the oldest record of a partition,
	// at a broker that answers; then the producer counts as lost. At least 1 s. During an outage
	// records wait; after it the producer has five more seconds (or AckTimeout, if less).
	AckTimeout time.Duration `yaml:"ack_timeout"`
	// ProducerName is the name of the producer at the brokers. On a partitioned topic the
	// partition's index is appended. Default: the broker chooses a name.
	ProducerName string `yaml:"producer_name"`
	// Ownership says whether others may write to the topic too. It has no configuration key: after
	// a loss the program must open another publisher.
	Ownership Ownership `yaml:"-"`
}

// Business is the profile for callers that wait for each record to be stored: with group commit a
// lone record is sent at once, and concurrent callers share entries.
func Business() Profile {
	return Profile{
		Name: "business", Linger: time.Millisecond, GroupCommit: true,
		BatchRecords: 1000, BatchBytes: 128 << 10, Compression: LZ4,
		MaxPendingRecords: 10_000, MaxPendingBytes: 64 << 20, Admission: Block,
		Routing: RouteKeyHash, AckTimeout: 60 * time.Second, Ownership: SharedOwnership,
	}
}

// Ops is the profile for many records by [Publisher.PublishAsync]: it is Business without group
// commit, with entries of up to 10,000 records and up to 100,000 records pending.
func Ops() Profile {
	p := Business()
	p.Name, p.GroupCommit = "ops", false
	p.BatchRecords, p.MaxPendingRecords = 10_000, 100_000
	return p
}

// Validate reports every fault at once, each as "path: what would be right".
func (p Profile) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Name == "" {
		fault("name: must be set")
	}
	if p.Linger < 0 {
		fault("linger: must be >= 0, got %s", p.Linger)
	}
	cluster.Positive(fault, "batch_records", p.BatchRecords)
	if p.BatchBytes < 1 || p.BatchBytes > 1<<20 {
		fault("batch_bytes: must be from 1 to 1048576, got %d", p.BatchBytes)
	}
	cluster.Positive(fault, "max_pending_records", p.MaxPendingRecords)
	cluster.Positive(fault, "max_pending_bytes", p.MaxPendingBytes)
	if p.AckTimeout < time.Second {
		fault("ack_timeout: must be at least 1s, got %s", p.AckTimeout)
	}
	cluster.OneOf(fault, "compression", p.Compression, LZ4, ZSTD, NoCompression)
	cluster.OneOf(fault, "admission", p.Admission, Block, FailFast)
	cluster.OneOf(fault, "routing", p.Routing, RouteKeyHash, RouteRoundRobin, RouteExplicit)
	cluster.OneOf(fault, "ownership", p.Ownership, SharedOwnership, ExclusiveOwnership, WaitForOwnership, NamedOwnership)
	if p.Ownership == NamedOwnership && p.ProducerName == "" {
		fault("producer_name: must be set with ownership: named")
	}
	return errors.Join(errs...)
}

// owns reports whether no other publisher, or none of the same name, may write while this one does.
func (p Profile) owns() bool { return p.Ownership != SharedOwnership }

// refusedWhileOwned reports whether opening fails while another publisher has the topic.
func (p Profile) refusedWhileOwned() bool {
	return p.Ownership == ExclusiveOwnership || p.Ownership == NamedOwnership
}

// unbatched reports whether every record is a separate message.
func (p Profile) unbatched() bool { return p.BatchRecords == 1 }

func (c Compression) raw() pulsar.CompressionType {
	switch c {
	case LZ4:
		return pulsar.LZ4
	case ZSTD:
		return pulsar.ZSTD
	default:
		return pulsar.NoCompression
	}
}

func (o Ownership) raw() pulsar.ProducerAccessMode {
	switch o {
	case ExclusiveOwnership:
		return pulsar.ProducerAccessModeExclusive
	case WaitForOwnership:
		return pulsar.ProducerAccessModeWaitForExclusive
	default:
		return pulsar.ProducerAccessModeShared
	}
}
