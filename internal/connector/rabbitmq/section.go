package rabbitmq

import (
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

// NameRules implements [connector.SinkConfig]. With an exchange the destination is a routing key,
// and nothing is reserved about it.
func (c SinkConfig) NameRules() connector.NameRules {
	if c.Exchange != "" {
		return connector.NameRules{}
	}
	return connector.NameRules{Reserved: reserved}
}

// reserved is NameRules.Reserved for RabbitMQ.
func reserved(queue string) string {
	if strings.HasPrefix(queue, "amq.") {
		return `it begins with "amq.", which RabbitMQ reserves for its own queues`
	}
	return ""
}
