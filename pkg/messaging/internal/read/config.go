package read

import (
	"cmp"
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
	// From is where a partition begins that After does not name. AtMessage needs a topic without
	// partitions, or a single partition of one. Nil, the default: earliest.
	From *record.Position `yaml:"-"`
	// After holds the last message that was read, at most one per partition: reading goes
	// on behind it. It is what [Reader.Positions] returns.
	After []record.MessageID `yaml:"-"`
	// ReadCompacted reads only the latest message of each key in the compacted part. It passes over
	// messages without a key, a payload and properties: compaction leaves them of a batch. A key
	// that was deleted and compacted away between two messages leaves no trace: a reader that keeps a
	// state should read from the beginning after a long pause, not from After. Default false.
	ReadCompacted bool `yaml:"read_compacted"`
	// PrefetchBytes bounds what brokers send ahead. As many messages of MaxMessageBytes are sent
	// ahead as fit, at least one and at most 1000 for each partition. Brokers count the messages in
	// batches, and send the last batch whole. Unbatched messages come faster with a lower
	// MaxMessageBytes. Partitions that are added later come on top. Defaults 64 MiB and 5 MiB, the
	// brokers' own limit.
	PrefetchBytes   int64 `yaml:"prefetch_bytes"`
	MaxMessageBytes int64 `yaml:"max_message_bytes"`
}

const maxQueue = 1000

func (c ReaderConfig) withDefaults() ReaderConfig {
	c.Name = cmp.Or(c.Name, "reader")
	c.PrefetchBytes = cmp.Or(c.PrefetchBytes, 64<<20)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 5<<20)
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
	cluster.Positive(fault, "prefetch_bytes", c.PrefetchBytes)
	cluster.Positive(fault, "max_message_bytes", c.MaxMessageBytes)
	return errors.Join(errs...)
}

// from is where a partition begins that After does not name.
func (c ReaderConfig) from() record.Position {
	if c.From == nil {
		return record.Earliest()
	}
	return *c.From
}

// since is the time to begin at, zero when that is somewhere else. Publish times have
// milliseconds.
func (c ReaderConfig) since() time.Time {
	_, _, at := record.KindOf(c.from())
	return at.Truncate(time.Millisecond)
}

// queueLength is the receive queue of each of n partitions.
func (c ReaderConfig) queueLength(n int) int {
	return int(min(max(c.PrefetchBytes/int64(n)/c.MaxMessageBytes, 1), maxQueue))
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
