package target

import (
	"cmp"
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

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

func (f *Factory) checkRabbitMQ(t *model.Target) model.FaultList {
	return checkConnection(f.connections.RabbitMQ, t.RabbitMQ.Connection, "rabbitmq")
}

func (f *Factory) openRabbitMQ(s *model.Subscriber, timeout time.Duration) (Target, error) {
	c := s.Target.RabbitMQ
	section := f.connections.RabbitMQ[c.Connection].sink(c.Exchange)
	start := func(o connector.Options) runner { return section.NewSink(o) }
	encode := func(d *Delivery) (string, *message.Message, error) {
		m, contentType, err := newMessage(d, "cloudEvents:") // AMQP protocol binding 1.0.2, section 3.1
		if err != nil {
			return "", nil, err
		}
		const persistent = 2
		m.AMQP = &message.AMQP{ContentType: contentType, DeliveryMode: persistent}
		return cmp.Or(c.RoutingKey, d.Event.Type), m, nil
	}
	t := &sinkTarget{timeout: timeout, encode: encode, keyOfEvent: c.RoutingKey == ""}
	return f.openSink(t, sinkKey{"rabbitmq", c.Connection, c.Exchange}, start)
}
