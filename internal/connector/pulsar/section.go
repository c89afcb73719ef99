package pulsar

import (
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector"
)

// SetDefaults is called before the section is decoded.
func (c *SourceConfig) SetDefaults() { *c = DefaultSourceConfig() }

// SetDefaults is called before the section is decoded.
func (c *SinkConfig) SetDefaults() { *c = DefaultSinkConfig() }

// NewSource implements [connector.SourceConfig].
func (c SourceConfig) NewSource(o connector.Options) (connector.Source, error) {
	return NewSource(c, o)
}

// NewSink implements [connector.SinkConfig].
func (c SinkConfig) NewSink(o connector.Options) (connector.Sink, error) { return NewSink(c, o) }

// ForGuarantee returns the section of a route with that guarantee.
func (c SinkConfig) ForGuarantee(guarantee string) connector.SinkConfig {
	c.Guarantee = guarantee
	return &c
}

// ForDeadLetters returns the section of a sink for the dead letters of a route whose messages keep
// their partition: these have no order and no partition.
func (c SinkConfig) ForDeadLetters() connector.SinkConfig {
	c.Guarantee, c.Partition = atLeastOnce, partitionKey
	return &c
}

// NameRules implements [connector.SinkConfig].
func (c SinkConfig) NameRules() connector.NameRules {
	return connector.NameRules{Separator: '/', Reserved: reserved}
}

// reserved is NameRules.Reserved for Pulsar. It takes every "-partition-" for that of a partition's
// name: the client fails to open topics such as a-partition-b.
func reserved(topic string) string {
	var clauses []string
	local := topic[strings.LastIndexByte(topic, '/')+1:]
	if strings.HasPrefix(local, "__") {
		clauses = append(clauses, `its last part begins with "__", which Pulsar reserves for its own topics`)
	}
	if strings.HasSuffix(local, "__transaction_pending_ack") {
		clauses = append(clauses, `it ends in "__transaction_pending_ack", which Pulsar reserves for its own topics`)
	}
	if at := strings.LastIndex(local, "-partition-"); at >= 0 {
		clauses = append(clauses, fmt.Sprintf("it ends in %q, as Pulsar names the partitions of a topic", local[at:]))
	}
	for part := range strings.SplitSeq(topic, "/") {
		if part == "." || part == ".." {
			clauses = append(clauses, fmt.Sprintf("it has the part %q, which Pulsar's admin API takes for a step in a path", part))
		}
	}
	return strings.Join(clauses, " and ")
}

// Memory is what the source may hold besides the messages that the route has taken: those that were
// received ahead, with the client's overhead of each.
func (c SourceConfig) Memory(int, int64) int64 {
	const each = 512
	return int64(c.PrefetchBytes) + each*int64(c.PrefetchMessages)
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the batches that
// contain them.
func (c SinkConfig) Memory(_ int, inFlight int64) int64 {
	return min(c.Profile.MaxPendingBytes, inFlight)
}
