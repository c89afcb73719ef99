package target

import (
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// Kafka is one cluster. Each topic that a subscriber names has its own producer: a topic that fails
// holds up no other.
type Kafka struct {
	kafka.Connection `yaml:",inline"`
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string `yaml:"compression"`
	// MaxMessageBytes bounds an event with its headers; a larger one is refused. Keep it at or
	// below max.message.bytes of the topics. Default 1000000.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// MissingTopic says what to do about a topic that does not exist. wait: try again until it
	// exists. create: create it with the brokers' defaults. Default wait.
	MissingTopic string `yaml:"missing_topic"`
}

// SetDefaults is called before the section is decoded.
func (c *Kafka) SetDefaults() {
	d := kafka.DefaultSinkConfig()
	*c = Kafka{Connection: d.Connection, Compression: d.Compression, MaxMessageBytes: d.MaxMessageBytes, MissingTopic: d.MissingTopic}
	c.ClientID = clientName
}

// Validate returns every fault of the section.
func (c Kafka) Validate() error { return c.sink().Validate() }

func (c Kafka) sink() kafka.SinkConfig {
	s := kafka.DefaultSinkConfig()
	s.Connection, s.Compression, s.MaxMessageBytes, s.MissingTopic = c.Connection, c.Compression, c.MaxMessageBytes, c.MissingTopic
	s.Linger = 0 // a delivery waits for its acknowledgement: events that come meanwhile make the next batch
	s.Retries = 2
	return s
}

func (f *Factory) checkKafka(t *model.Target) model.FaultList {
	return checkConnection(f.connections.Kafka, t.Kafka.Connection, "kafka")
}

func (f *Factory) openKafka(s *model.Subscriber, timeout time.Duration) (Target, error) {
	c := s.Target.Kafka
	section := f.connections.Kafka[c.Connection].sink()
	start := func(o connector.Options) runner { return section.NewSink(o) }
	encode := func(d *Delivery) (string, *message.Message, error) {
		m, err := keyedMessage(d)
		if err != nil {
			return "", nil, err
		}
		m.Time = time.Now() // not the event's: brokers refuse times ahead of their own, and delete records by their time
		return c.Topic, m, nil
	}
	return f.openSink(&sinkTarget{timeout: timeout, encode: encode}, sinkKey{"kafka", c.Connection, c.Topic}, start)
}
