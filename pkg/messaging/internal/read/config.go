package read

import (
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// ReaderConfig says what to read, and from where. Topic must be set.
type ReaderConfig struct {
	// Topic to read: all of its partitions, or one (name-partition-3). It must be persistent.
	Topic string `yaml:"topic"`
	// Name is the label "reader" of the metrics. Keep the set of names small. Default "reader".
	Name string `yaml:"name"`
	// StartAt is where a partition begins that After does not name. Default earliest.
	StartAt record.StartAt `yaml:"start_at"`
	// From is where it begins in place of StartAt: at a message or a time, for instance.
	// AtMessage needs a topic without partitions, or a single partition of one. Nil, the
	// default: StartAt. It is what [ConsumerConfig].From is to a subscription.
	From *record.Position `yaml:"-"`
	// After holds the last message that was read, at most one per partition: reading goes
	// on behind it. It is what [Reader.Positions] returns.
	After []record.MessageID `yaml:"-"`
	// ReadCompacted reads only the latest message of each key of what was compacted. Messages
	// without a key, a payload and properties are then passed over: they are what compaction
	// leaves of a batch's other messages. A key that was deleted and compacted away between
	// two messages that are read leaves no trace: whoever keeps a state reads it from the
	// beginning after a long time away, not from After. Default false.
	ReadCompacted bool `yaml:"read_compacted"`
	// PrefetchBytes bounds what brokers send ahead, and MaxMessageBytes is how large messages are
	// taken to be: as many messages of that size are sent ahead as fit, at least one and at most
	// 1000 for each partition. Brokers count a batch as its messages, and send the last batch
	// whole. Lower MaxMessageBytes when messages are known to be small: the rate of unbatched
	// messages grows with their number. Partitions that are added while the reader is open come on
	// top. Defaults 64 MiB and 5 MiB, the brokers' own limit.
	PrefetchBytes   int64 `yaml:"prefetch_bytes"`
	MaxMessageBytes int64 `yaml:"max_message_bytes"`
	// DiscoverEvery is the interval of looking for new partitions. Those are read from their
	// beginning. Default 1m.
	DiscoverEvery time.Duration `yaml:"discover_every"`
}

const readerMaxQueue = 1000

func (c ReaderConfig) withDefaults() ReaderConfig {
	if c.Name == "" {
		c.Name = "reader"
	}
	if c.StartAt == "" {
		c.StartAt = record.StartEarliest
	}
	if c.PrefetchBytes == 0 {
		c.PrefetchBytes = 64 << 20
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = 5 << 20
	}
	if c.DiscoverEvery == 0 {
		c.DiscoverEvery = time.Minute
	}
	return c
}

// Validate reports every fault at once, each as "path: what would be right".
func (c ReaderConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !record.ValidTopic(c.Topic) {
		fault("topic: must be the name of a topic, got %q", c.Topic)
	}
	if err := record.Keeps(c.Topic); err != nil {
		fault("topic: must be persistent, got %q: %w", c.Topic, err)
	}
	cluster.OneOf(fault, "start_at", c.StartAt, record.StartEarliest, record.StartLatest)
	if kind, id, _ := record.KindOf(c.from()); kind == record.MessageKind {
		if err := record.InTopic(id); err != nil {
			fault("from: %w", err)
		}
	}
	named := make(map[int]bool)
	for _, id := range c.After {
		switch p := id.Partition(); {
		case id.IsZero():
			fault("after: must not hold an id that names nothing")
		case named[p]:
			fault("after: must hold one id per partition, got two of %d", p)
		default:
			named[p] = true
		}
	}
	if c.PrefetchBytes < 1 {
		fault("prefetch_bytes: must be > 0, got %d", c.PrefetchBytes)
	}
	if c.MaxMessageBytes < 1 {
		fault("max_message_bytes: must be > 0, got %d", c.MaxMessageBytes)
	}
	if c.DiscoverEvery < 0 {
		fault("discover_every: must be > 0, got %s", c.DiscoverEvery)
	}
	return errors.Join(errs...)
}

// from is where a partition begins that After does not name.
func (c ReaderConfig) from() record.Position {
	switch {
	case c.From != nil:
		return *c.From
	case c.StartAt == record.StartLatest:
		return record.Latest()
	default:
		return record.Earliest()
	}
}

// since is the time to begin at, zero when that is somewhere else. Publish times have
// milliseconds.
func (c ReaderConfig) since() time.Time {
	_, _, at := record.KindOf(c.from())
	return at.Truncate(time.Millisecond)
}

// queueLength is the receive queue of each of n partitions.
func (c ReaderConfig) queueLength(n int) int {
	return int(min(max(c.PrefetchBytes/int64(n)/c.MaxMessageBytes, 1), readerMaxQueue))
}

// after is the id of After that is of partition, else the zero MessageID.
func (c ReaderConfig) after(partition int) record.MessageID {
	for _, id := range c.After {
		if id.Partition() == partition {
			return id
		}
	}
	return record.MessageID{}
}
