package target

import (
	"errors"
	"net/netip"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the section targets: which addresses webhooks may have.
type Config struct {
	// Allow lists networks (CIDR) that webhooks and token URLs may be in although they are not
	// public. Private, loopback, link-local and other special addresses outside of these networks
	// are refused. Default: none.
	Allow []netip.Prefix `yaml:"allow"`
	// Ports lists the ports that webhooks and token URLs may have. Default: any.
	Ports []uint16 `yaml:"ports"`
}

// Connections is the section connections: the systems that targets may use. A target names a
// connection by its key here.
type Connections struct {
	// Kafka and RabbitMQ hold connections by the names that targets use. Default: none.
	Kafka    map[string]Kafka    `yaml:"kafka"`
	RabbitMQ map[string]RabbitMQ `yaml:"rabbitmq"`
	// Pulsar holds connections to clusters other than Eventbridge's own. Default: none.
	Pulsar map[string]Pulsar `yaml:"pulsar"`
}

// clientName is Eventbridge's name in the logs and views of other systems.
const clientName = "eventbridge"

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

// RabbitMQ is one virtual host. Each exchange that a subscriber names has its own connection: an
// exchange that fails, or whose connection an alarm blocks, holds up no other.
type RabbitMQ struct {
	rabbitmq.Connection `yaml:",inline"`
	// MaxMessageBytes is the broker's max_message_size; larger events are refused without being
	// sent. Default 16MiB, as in RabbitMQ 4.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
}

// SetDefaults is called before the section is decoded.
func (c *RabbitMQ) SetDefaults() {
	d := rabbitmq.DefaultSinkConfig()
	*c = RabbitMQ{Connection: d.Connection, MaxMessageBytes: d.MaxMessageBytes}
	c.Name = clientName
}

// Validate returns every fault of the section.
func (c RabbitMQ) Validate() error {
	return errors.Join(c.Connection.Validate(), c.sink("").Validate())
}

func (c RabbitMQ) sink(exchange string) rabbitmq.SinkConfig {
	s := rabbitmq.DefaultSinkConfig()
	s.Connection, s.MaxMessageBytes, s.Exchange = c.Connection, c.MaxMessageBytes, exchange
	s.Channels, s.Window, s.WindowBytes = 1, pendingEvents, pendingBytes
	return s
}

// Pulsar is one cluster.
type Pulsar struct {
	messaging.Config `yaml:",inline"`
	// MaxMessageBytes is the brokers' maxMessageSize; larger events are refused. Default 5MiB, as
	// in Pulsar.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
}

// SetDefaults is called before the section is decoded.
func (c *Pulsar) SetDefaults() {
	d := pulsar.DefaultSinkConfig()
	*c = Pulsar{Config: d.Config, MaxMessageBytes: d.MaxMessageBytes}
}

// Validate returns every fault of the section.
func (c Pulsar) Validate() error { return c.sink().Validate() }

func (c Pulsar) sink() pulsar.SinkConfig {
	s := pulsar.DefaultSinkConfig()
	s.Config, s.MaxMessageBytes, s.Profile = c.Config, c.MaxMessageBytes, messaging.Business()
	s.Profile.Name, s.Profile.MaxPendingRecords = "target", pendingEvents
	s.MaxTopics = 100_000 // as many as subscribers name
	return s
}
