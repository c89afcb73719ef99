package target

import (
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

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

func (f *Factory) checkPulsar(t *model.Target) (faults model.FaultList) {
	if t.Pulsar.Connection != "" {
		faults = checkConnection(f.connections.Pulsar, t.Pulsar.Connection, "pulsar")
	}
	if f.ownTopic(t.Pulsar.Topic) {
		faults.Add("/topic", "must not be one of Eventbridge's own: events go to a bus by its HTTP API")
	}
	return faults
}

// ownTopic reports whether a name is, or could become, that of one of Eventbridge's topics. It does
// so for each connection, because another connection may lead to the same cluster.
func (f *Factory) ownTopic(name string) bool {
	own, _ := strings.CutSuffix(shortTopic(f.topics.Registry()), "registry")
	return strings.HasPrefix(shortTopic(name), own)
}

// shortTopic returns tenant/namespace/name.
func shortTopic(name string) string {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "non-persistent://"), "persistent://")
	if !strings.Contains(name, "/") {
		return "public/default/" + name
	}
	return name
}

func (f *Factory) openPulsar(s *model.Subscriber, timeout time.Duration) (Target, error) {
	c := s.Target.Pulsar
	section := f.own.sink()
	if c.Connection != "" {
		section = f.connections.Pulsar[c.Connection].sink()
	}
	start := func(o connector.Options) runner { return section.NewSink(o) }
	encode := func(d *Delivery) (string, *message.Message, error) {
		m, err := keyedMessage(d)
		if err != nil {
			return "", nil, err
		}
		m.From.Partition = -1
		if d.Event.Time.UnixMilli() > 0 {
			m.Time = time.UnixMilli(d.Event.Time.UnixMilli()).UTC()
		}
		return c.Topic, m, nil
	}
	return f.openSink(&sinkTarget{timeout: timeout, encode: encode}, sinkKey{"pulsar", c.Connection, ""}, start)
}
