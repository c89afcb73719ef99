package kafka

import (
	"strings"

	"github.com/aviaryhq/aviary/internal/connector"
)

// SetDefaults is called before the section is decoded.
func (c *SourceConfig) SetDefaults() { *c = DefaultSourceConfig() }

// SetDefaults is called before the section is decoded.
func (c *SinkConfig) SetDefaults() { *c = DefaultSinkConfig() }

// Offsets reports that each partition's messages have ascending numbers, by which a sink knows what
// it has stored.
func (c SourceConfig) Offsets() bool { return true }

// ForDeadLetters returns the section of a sink for the dead letters of a route whose messages keep
// their partition: these have no order and no partition.
func (c SinkConfig) ForDeadLetters() connector.SinkConfig {
	c.Partition = partitionKey
	return &c
}

// NameRules implements [connector.SinkConfig]. checkName refuses names that no topic can have.
func (c SinkConfig) NameRules() connector.NameRules {
	return connector.NameRules{Reserved: func(topic string) string {
		if strings.HasPrefix(topic, "__") {
			return `it begins with "__", which Kafka reserves for its own topics`
		}
		return ""
	}}
}
