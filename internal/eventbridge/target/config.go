package target

import (
	"errors"
	"net/netip"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the section targets: where webhooks may be, and what their connections may cost.
type Config struct {
	// Allow lists networks (CIDR) that webhooks and token URLs may be in though they are not public: private, loopback, link-local and other special
	// addresses are refused otherwise. Default: none.
	Allow []netip.Prefix `yaml:"allow"`
	// Ports lists the ports that webhooks and token URLs may have. Default: any.
	Ports []uint16 `yaml:"ports"`
	// IdleConnections bounds the connections to webhooks that are kept open for the next delivery, of all subscribers together. Default 512.
	IdleConnections int `yaml:"idle_connections"`
	// IdleTimeout is how long such a connection is kept. Default 30s.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{IdleConnections: 512, IdleTimeout: 30 * time.Second} }

// Validate returns every fault of the section.
func (c Config) Validate() error {
	var errs []error
	if c.IdleConnections < 1 || c.IdleConnections > 65535 {
		errs = append(errs, config.Fault("idle_connections", "must be from 1 to 65535, got %d", c.IdleConnections))
	}
	if c.IdleTimeout < time.Second {
		errs = append(errs, config.Fault("idle_timeout", "must be at least 1s, got %s", c.IdleTimeout))
	}
	return errors.Join(errs...)
}

// Connections is the section connections: the systems that targets may name, by the names that they are given here.
type Connections struct {
	Kafka    map[string]Kafka    `yaml:"kafka"`
	RabbitMQ map[string]RabbitMQ `yaml:"rabbitmq"`
	Redis    map[string]Redis    `yaml:"redis"`
	// Pulsar is for clusters besides the one that Eventbridge itself uses.
	Pulsar map[string]Pulsar `yaml:"pulsar"`
}

// clientName is Eventbridge's in the logs and views of other systems.
const clientName = "eventbridge"

// Kafka is one cluster. Each topic that a subscriber names has a producer of its own: one that fails holds up no other.
type Kafka struct {
	kafka.Connection `yaml:",inline"`
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string `yaml:"compression"`
	// MaxMessageBytes bounds an event with its headers. A larger one is refused. Keep it at or below the topics' max.message.bytes. Default 1000000.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// MissingTopic says what to do about a topic that does not exist. wait: try again until it does. create: create it, as the brokers' defaults
	// say. Default wait.
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
	s.Linger = 0 // a delivery waits for its acknowledgement: what comes together while one is under way makes the next batch
	s.Retries = 2
	return s
}

// RabbitMQ is one virtual host. Each exchange that a subscriber names has a connection of its own: one that fails, or is under an alarm, holds up no
// other.
type RabbitMQ struct {
	rabbitmq.Connection `yaml:",inline"`
	// MaxMessageSize is the broker's max_message_size: larger events are refused without asking it. Default 16MiB, as in RabbitMQ 4.
	MaxMessageSize config.Bytes `yaml:"max_message_size"`
}

// SetDefaults is called before the section is decoded.
func (c *RabbitMQ) SetDefaults() {
	d := rabbitmq.DefaultSinkConfig()
	*c = RabbitMQ{Connection: d.Connection, MaxMessageSize: d.MaxMessageSize}
	c.Name = clientName
}

// Validate returns every fault of the section.
func (c RabbitMQ) Validate() error {
	return errors.Join(c.Connection.Validate(), c.sink("").Validate())
}

func (c RabbitMQ) sink(exchange string) rabbitmq.SinkConfig {
	s := rabbitmq.DefaultSinkConfig()
	s.Connection, s.MaxMessageSize, s.Exchange = c.Connection, c.MaxMessageSize, exchange
	s.Channels, s.Window, s.WindowBytes = 1, pendingEvents, pendingBytes
	return s
}

// Pulsar is one cluster.
type Pulsar struct {
	messaging.Config `yaml:",inline"`
	// MaxMessageBytes is the brokers' maxMessageSize: larger events are refused. Default 5MiB, as Pulsar's.
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
	s.Profile.Name = "target"
	s.MaxTopics = 100_000 // as many as subscribers name
	return s
}
