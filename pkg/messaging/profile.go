package messaging

import (
	"errors"
	"fmt"
	"time"
)

// Compression of a publisher's batches.
type Compression string

// The compressions. LZ4 costs little and is the default of both profiles.
const (
	LZ4           Compression = "lz4"
	ZSTD          Compression = "zstd"
	NoCompression Compression = "none"
)

// Routing picks the partition of a record.
type Routing string

const (
	// RouteKeyHash sends a key's records to one partition by Java's String hash,
	// as Pulsar's other clients do, and records without a key round robin.
	RouteKeyHash Routing = "key_hash"
	// RouteRoundRobin spreads records evenly in runs long enough to batch well,
	// and passes over a partition whose queue is full.
	RouteRoundRobin Routing = "round_robin"
	// RouteExplicit sends a record to its Partition.
	RouteExplicit Routing = "explicit"
)

// Admission is what happens to a record when the queue is full.
type Admission string

const (
	// Block waits for room until the caller's context ends.
	Block Admission = "block"
	// FailFast fails the record with ErrQueueFull.
	FailFast Admission = "fail_fast"
)

// Access is a publisher's claim on its topic (Pulsar's producer access modes).
type Access string

const (
	// SharedAccess lets many publishers write.
	SharedAccess Access = "shared"
	// ExclusiveAccess fails while another publisher is connected.
	ExclusiveAccess Access = "exclusive"
	// WaitForExclusiveAccess waits for the other publisher to leave.
	WaitForExclusiveAccess Access = "wait_for_exclusive"
)

// OnLoss is what happens to a publisher whose producer is lost: fenced, closed by the
// broker for good, or silent for AckTimeout. Connections that break are no loss.
type OnLoss string

const (
	// ReplaceProducer sends everything that is not acknowledged again through
	// another producer. What the broker stored without saying so is stored twice.
	ReplaceProducer OnLoss = "replace"
	// FailOnLoss ends the partition with ErrProducerLost, so that the caller can find
	// out by [Client.Last] what is stored and go on behind it.
	FailOnLoss OnLoss = "fail"
)

// Profile is how a publisher trades latency for throughput. Start from [Business]
// or [Ops] and change single fields.
type Profile struct {
	// Name labels the metrics. Keep the set of names small.
	Name string `yaml:"name"`
	// Linger is the longest time a record waits for others to share its batch.
	// At least 1 ms is used: the client's timer ticks no faster.
	Linger time.Duration `yaml:"linger"`
	// GroupCommit sends a record at once when nothing is in flight, and gathers
	// records into the next batch while one is: nobody waits for company that may
	// not come, and concurrent callers still share batches.
	GroupCommit bool `yaml:"group_commit"`
	// BatchRecords and BatchBytes (before compression) close a batch. BatchBytes
	// is at most 1 MiB: near the broker's limit a batch would fail whole.
	// BatchRecords 1 switches batching off, which topics with Key_Shared
	// subscribers need (a batch is dispatched by its first record's key), and
	// records with DeliverAt.
	BatchRecords int `yaml:"batch_records"`
	BatchBytes   int `yaml:"batch_bytes"`
	// Compression of each batch.
	Compression Compression `yaml:"compression"`
	// MaxPendingRecords and MaxPendingBytes bound what is accepted and not yet
	// acknowledged. Each partition has an equal share, so that one that is stuck
	// leaves the others theirs; a record larger than a share is admitted alone.
	MaxPendingRecords int   `yaml:"max_pending_records"`
	MaxPendingBytes   int64 `yaml:"max_pending_bytes"`
	// Admission is what happens to a record that finds the queue full.
	Admission Admission `yaml:"admission"`
	// Routing picks partitions.
	Routing Routing `yaml:"routing"`
	// AckTimeout is how long the oldest record may wait for its acknowledgement
	// without any progress, at a broker that answers, before the producer is
	// replaced and everything in flight is sent again. It guards against a receipt
	// that never comes; during an outage records simply wait, and when it ends the
	// producer has five seconds more (or AckTimeout, if that is less).
	AckTimeout time.Duration `yaml:"ack_timeout"`
	// ProducerName is the broker-visible name; on a partitioned topic the
	// partition's index is appended. Default: the broker chooses one.
	ProducerName string `yaml:"producer_name"`
	// Access is the claim on the topic.
	Access Access `yaml:"access"`
	// OnLoss is what happens when a producer is lost.
	OnLoss OnLoss `yaml:"on_loss"`
}

// Business is the profile of core business data: group commit, so that a lone
// record is sent at once and concurrent callers share batches.
func Business() Profile {
	return Profile{
		Name:              "business",
		Linger:            time.Millisecond,
		GroupCommit:       true,
		BatchRecords:      1000,
		BatchBytes:        128 << 10,
		Compression:       LZ4,
		MaxPendingRecords: 10_000,
		MaxPendingBytes:   64 << 20,
		Admission:         Block,
		Routing:           RouteKeyHash,
		AckTimeout:        60 * time.Second,
		Access:            SharedAccess,
		OnLoss:            ReplaceProducer,
	}
}

// Ops is the profile of monitoring data: asynchronous, deep queues, 1 ms linger.
func Ops() Profile {
	return Profile{
		Name:              "ops",
		Linger:            time.Millisecond,
		BatchRecords:      10_000,
		BatchBytes:        128 << 10,
		Compression:       LZ4,
		MaxPendingRecords: 100_000,
		MaxPendingBytes:   64 << 20,
		Admission:         Block,
		Routing:           RouteKeyHash,
		AckTimeout:        60 * time.Second,
		Access:            SharedAccess,
		OnLoss:            ReplaceProducer,
	}
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
	if p.BatchRecords < 1 {
		fault("batch_records: must be > 0, got %d", p.BatchRecords)
	}
	if p.BatchBytes < 1 || p.BatchBytes > 1<<20 {
		fault("batch_bytes: must be from 1 to 1048576, got %d", p.BatchBytes)
	}
	if p.MaxPendingRecords < 1 {
		fault("max_pending_records: must be > 0, got %d", p.MaxPendingRecords)
	}
	if p.MaxPendingBytes < 1 {
		fault("max_pending_bytes: must be > 0, got %d", p.MaxPendingBytes)
	}
	if p.AckTimeout < time.Second {
		fault("ack_timeout: must be at least 1s, got %s", p.AckTimeout)
	}
	oneOf(fault, "compression", p.Compression, LZ4, ZSTD, NoCompression)
	oneOf(fault, "admission", p.Admission, Block, FailFast)
	oneOf(fault, "routing", p.Routing, RouteKeyHash, RouteRoundRobin, RouteExplicit)
	oneOf(fault, "access", p.Access, SharedAccess, ExclusiveAccess, WaitForExclusiveAccess)
	oneOf(fault, "on_loss", p.OnLoss, ReplaceProducer, FailOnLoss)
	return errors.Join(errs...)
}

// unbatched reports whether every record is a message of its own.
func (p Profile) unbatched() bool { return p.BatchRecords == 1 }

// oneOf reports a fault unless got is one of want.
func oneOf[T ~string](fault func(string, ...any), path string, got T, want ...T) {
	for _, w := range want {
		if got == w {
			return
		}
	}
	fault("%s: must be one of %v, got %q", path, want, string(got))
}
