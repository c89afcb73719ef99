package pulsar

import (
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
