package rabbitmq

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
