package pigeonhole

import (
	"reflect"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// SourceConfig configures a source of one system: exactly one field is set. A field's key is the
// system's name, its type makes the source. To add a system, add a package below internal/connector
// and a field here.
type SourceConfig struct {
	// Kafka, RabbitMQ or Pulsar: exactly one of them.
	Kafka    *kafka.SourceConfig    `yaml:"kafka"`
	RabbitMQ *rabbitmq.SourceConfig `yaml:"rabbitmq"`
	Pulsar   *pulsar.SourceConfig   `yaml:"pulsar"`
}

// SinkConfig configures a sink of one system, as SourceConfig does a source.
type SinkConfig struct {
	// Kafka, RabbitMQ or Pulsar: exactly one of them.
	Kafka    *kafka.SinkConfig    `yaml:"kafka"`
	RabbitMQ *rabbitmq.SinkConfig `yaml:"rabbitmq"`
	Pulsar   *pulsar.SinkConfig   `yaml:"pulsar"`
}

// section returns the system that is set, and its section; nil for none.
func (c SourceConfig) section() (system string, section connector.SourceConfig) {
	return firstSet[connector.SourceConfig](c)
}

// section returns the system that is set, and its section; nil for none.
func (c SinkConfig) section() (system string, section connector.SinkConfig) {
	return firstSet[connector.SinkConfig](c)
}

func (c SourceConfig) system() string {
	name, _ := c.section()
	return name
}

func (c SinkConfig) system() string {
	name, _ := c.section()
	return name
}

// Validate returns a fault unless there is exactly one system.
func (c SourceConfig) Validate() error { return exactlyOne(c) }

// Validate returns a fault unless there is exactly one system.
func (c SinkConfig) Validate() error { return exactlyOne(c) }

// firstSet returns the first section of systems that is set, and its key.
func firstSet[S any](systems any) (system string, first S) {
	v := reflect.ValueOf(systems)
	for i, name := range systemNames(v.Type()) {
		if section, ok := v.Field(i).Interface().(S); ok && !v.Field(i).IsNil() {
			return name, section
		}
	}
	return "", first
}

// systemNames returns the keys of all systems.
func systemNames(t reflect.Type) []string {
	all := make([]string, t.NumField())
	for i := range all {
		all[i] = t.Field(i).Tag.Get("yaml")
	}
	return all
}

func exactlyOne(systems any) error {
	v := reflect.ValueOf(systems)
	n := 0
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	if n == 1 {
		return nil
	}
	all := systemNames(v.Type())
	last := len(all) - 1
	return config.Fault("", "must be one of %s and %s, got %d of them", strings.Join(all[:last], ", "), all[last], n)
}

// offsetSource is the section of a source whose messages have offsets.
type offsetSource interface {
	Offsets() bool
}

// exactSink is the section of a sink that can store each offset of a source exactly once.
type exactSink interface {
	ForEffectivelyOnce() connector.SinkConfig
}

// followingSink is the section of a sink that can keep the partition number of messages.
type followingSink interface {
	FollowsSource() bool
	ForDeadLetters() connector.SinkConfig
}

// supportsEffectivelyOnce reports whether the systems of a route allow effectively_once.
func (c RouteConfig) supportsEffectivelyOnce() bool {
	_, source := c.Source.section()
	_, sink := c.Sink.section()
	numbered, ok := source.(offsetSource)
	_, once := sink.(exactSink)
	return ok && numbered.Offsets() && once
}

// sink returns the section of the route's sink, with the route's guarantee, and its system.
func (c RouteConfig) sink() (system string, section connector.SinkConfig) {
	system, section = c.Sink.section()
	if exact, ok := section.(exactSink); ok && c.Guarantee == EffectivelyOnce {
		section = exact.ForEffectivelyOnce()
	}
	return system, section
}

// newTransform compiles the route's transformation with the rules for names of the sink's system.
func (c RouteConfig) newTransform() (*transform.Transform, error) {
	_, sink := c.Sink.section()
	rules := sink.NameRules()
	if c.To == "{topic}" && c.Source.system() == c.Sink.system() {
		rules = connector.NameRules{} // the same name in another cluster
	}
	return transform.New(c.Config, rules)
}

// deadLetterSink returns the section of the dead-letter sink, and its system. The section is nil if
// the route's own sink stores dead letters, or refused messages stop the route. A sink that keeps
// the partition number cannot store dead letters: their topic may have fewer partitions.
func (c RouteConfig) deadLetterSink() (system string, section connector.SinkConfig) {
	if !c.deadLetters() {
		return "", nil
	}
	if own := c.DeadLetter.Sink; own != nil {
		return own.section()
	}
	system, section = c.Sink.section()
	if following, ok := section.(followingSink); ok && following.FollowsSource() {
		return system, following.ForDeadLetters()
	}
	return "", nil
}
