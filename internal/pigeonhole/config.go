package pigeonhole

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
	"github.com/aviaryhq/aviary/internal/setup"
)

// Config is the configuration of pigeonhole.
type Config struct {
	app.Common `yaml:",inline"`
	// Name is the name of this process on /routes. Default pigeonhole.
	Name string `yaml:"name"`
	// InFlight bounds the messages that all routes have taken and not stored yet. Each route has an
	// equal share, unless it sets its own bounds. Defaults 20000 messages, 128MiB.
	InFlight InFlight `yaml:"in_flight"`
	// Routes to run. Default: none.
	Routes []RouteConfig `yaml:"routes"`
	// Setup says what -setup creates at Pulsar for the routes. Only -setup uses it.
	Setup setup.Section `yaml:"setup"`
}

// InFlight is a bound on what is held in memory.
type InFlight struct {
	// Messages bounds the number of messages that are taken and not stored yet.
	Messages int `yaml:"messages"`
	// Bytes bounds the bytes of messages that are taken and not stored yet. Each message counts
	// about 256 bytes more than its content.
	Bytes config.Bytes `yaml:"bytes"`
}

// Values of keys of a route.
const (
	AtLeastOnce     = "at_least_once"    // nothing is lost; after a failure some messages are stored twice
	EffectivelyOnce = "effectively_once" // Kafka to Pulsar: nothing is stored twice either

	provenanceFull = "full"
	provenanceHops = "hops"
)

// RouteConfig is one route.
type RouteConfig struct {
	// Name of the route, in logs, metrics and /routes. Must be set.
	Name string `yaml:"name"`
	// Source and Sink are one system each: kafka, rabbitmq or pulsar.
	Source SourceConfig `yaml:"source"`
	Sink   SinkConfig   `yaml:"sink"`
	// Filter, changes and the destination.
	transform.Config `yaml:",inline"`
	// Guarantee is at_least_once or effectively_once. effectively_once works from Kafka to Pulsar
	// only. It needs sink.pulsar.partition source; topics that have no other producer, where each
	// partition stores the messages of one partition of one source topic; topics that keep their
	// last message, by retention or by a subscription that lags; and deduplication, enabled on the
	// topics or their namespace (pulsar-admin namespaces set-deduplication --enable, or
	// topicPolicies set-deduplication). This client cannot check deduplication: without it, a
	// broken connection may store messages twice. Default at_least_once.
	Guarantee string `yaml:"guarantee"`
	// DeadLetter is the destination of refused messages: those that no retry can store.
	DeadLetter DeadLetter `yaml:"dead_letter"`
	// Provenance says what Pigeonhole adds to a message: full, its origin and its hops; or hops,
	// its hops only, which stop loops. Dead letters always have both. effectively_once needs full.
	// Default full.
	Provenance string `yaml:"provenance"`
	// InFlight bounds the messages that the route has taken and not stored yet. Default: its share
	// of the bounds of all routes.
	InFlight InFlight `yaml:"in_flight"`
}

// DeadLetter is where refused messages go.
type DeadLetter struct {
	// To is the topic or queue for dead letters. Default: none; the first refused message then
	// stops the route.
	To string `yaml:"to"`
	// Sink stores the dead letters. Default: the route's own sink, with partition: key.
	Sink *SinkConfig `yaml:"sink"`
}

// DefaultConfig returns the defaults: no routes.
func DefaultConfig() Config {
	return Config{
		Common:   app.DefaultCommon("127.0.0.1:9302"),
		Name:     "pigeonhole",
		InFlight: InFlight{Messages: 20_000, Bytes: 128 * config.MiB},
		Setup:    setup.Section{Policies: setup.Defaults()},
	}
}

// SetDefaults sets the defaults of a route. It is called before the route is decoded.
func (c *RouteConfig) SetDefaults() { c.Guarantee, c.Provenance = AtLeastOnce, provenanceFull }

// Warnings warns if there are no routes. The process runs without routes: a reload can add some.
func (c Config) Warnings() (warnings []string) {
	if len(c.Routes) == 0 {
		warnings = []string{"routes: the list is empty, so nothing is replicated"}
	}
	return warnings
}

// Validate returns the faults that are not of a single route.
func (c Config) Validate() error {
	errs := []error{
		checkName(c.Name),
		config.CheckPositive("in_flight.messages", c.InFlight.Messages),
		config.CheckPositive("in_flight.bytes", c.InFlight.Bytes),
	}
	for i, r := range c.Routes {
		first := slices.IndexFunc(c.Routes, func(other RouteConfig) bool { return other.Name == r.Name })
		errs = append(errs, config.Require(first == i, fmt.Sprintf("routes[%d].name", i),
			"must be unique, %q is the name of routes[%d] too", r.Name, first))
	}
	return errors.Join(errs...)
}

func checkName(name string) error {
	ok := regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString(name)
	return config.Require(ok, "name", "must be letters, digits, '-', '_' and '.', at most 64 of them, got %q", name)
}

// Validate returns every fault of the route itself; its parts return their own.
func (c RouteConfig) Validate() error {
	_, from := only(c.Source)
	system, into := only(c.Sink)
	source, numbered := from.(connector.PartitionedSource)
	_, exact := into.(connector.ExactSink)
	once := c.Guarantee == EffectivelyOnce
	return errors.Join(
		checkName(c.Name),
		config.CheckOneOf("guarantee", c.Guarantee, AtLeastOnce, EffectivelyOnce),
		config.Require(!once || numbered && source.Offsets() && exact,
			"guarantee", "effectively_once needs source.kafka and sink.pulsar: the other systems have no positions to resume from"),
		config.Require(!once || !exact || followsSource(into), "sink."+system+".partition",
			"must be source with guarantee effectively_once"),
		config.CheckOneOf("provenance", c.Provenance, provenanceFull, provenanceHops),
		config.Require(!once || c.Provenance != provenanceHops, "provenance",
			"must be full with guarantee effectively_once, which resumes by it"),
		config.Require(c.DeadLetter.Sink == nil || c.DeadLetter.To != "", "dead_letter.to", "must be set with dead_letter.sink"),
		config.CheckAtLeast("in_flight.messages", c.InFlight.Messages, 0))
}

// bounds returns the bounds of a route: its own, or its share of the process's bounds.
func (c Config) bounds(r RouteConfig) InFlight {
	return InFlight{
		Messages: cmp.Or(r.InFlight.Messages, c.InFlight.Messages/len(c.Routes), 1),
		Bytes:    cmp.Or(r.InFlight.Bytes, c.InFlight.Bytes/config.Bytes(len(c.Routes)), 1),
	}
}
