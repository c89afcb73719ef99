package pigeonhole

import (
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// systems is the table of the systems that routes connect. A further one is a package below
// internal/connector and a line here.
func systems() []connector.System {
	return []connector.System{
		kafka.System(),
		rabbitmq.System(),
		pulsar.System(),
	}
}

// Sections holds the section of one system under the system's name.
type Sections[S any] map[string]S

// SourceConfig is a source.
type SourceConfig = Sections[connector.SourceConfig]

// SinkConfig is a sink.
type SinkConfig = Sections[connector.SinkConfig]

// Kinds implements [config.Kinds].
func (Sections[S]) Kinds() map[string]any {
	all := map[string]any{}
	for _, s := range systems() {
		for _, section := range []any{s.Source(), s.Sink()} {
			if _, ok := section.(S); ok {
				all[s.Name] = section
			}
		}
	}
	return all
}

// Validate returns a fault unless there is exactly one system.
func (c Sections[S]) Validate() error {
	var names []string
	for _, s := range systems() {
		names = append(names, s.Name)
	}
	return config.Require(len(c) == 1, "", "must be one of %s, got %d of them", strings.Join(names, ", "), len(c))
}

// only returns the system of a valid source or sink, and its section.
func only[S any](sections Sections[S]) (system string, section S) {
	for system, section = range sections {
		break
	}
	return system, section
}

// sink returns the system of the route's sink, and its section with the route's guarantee.
func (c RouteConfig) sink() (system string, section connector.SinkConfig) {
	system, section = only(c.Sink)
	if exact, ok := section.(connector.ExactSink); ok && c.Guarantee == EffectivelyOnce {
		section = exact.ForEffectivelyOnce()
	}
	return system, section
}

// deadLetterSink returns the system and the section of the sink for dead letters, nil if there are
// none or the route's own sink stores them. Theirs may have fewer partitions than the source.
func (c RouteConfig) deadLetterSink() (system string, section connector.SinkConfig) {
	system, section = only(c.Sink)
	partitioned, ok := section.(connector.PartitionedSink)
	switch {
	case c.DeadLetter.To == "":
		return "", nil
	case c.DeadLetter.Sink != nil:
		return only(*c.DeadLetter.Sink)
	case ok && partitioned.FollowsSource():
		return system, partitioned.ForDeadLetters()
	}
	return "", nil
}

// followsSource reports whether messages keep the number of their partition.
func followsSource(sink connector.SinkConfig) bool {
	partitioned, ok := sink.(connector.PartitionedSink)
	return ok && partitioned.FollowsSource()
}

// newTransform compiles the route's transformation with the rules for names of the sink's system.
func (c RouteConfig) newTransform() (*transform.Transform, error) {
	from, _ := only(c.Source)
	into, sink := only(c.Sink)
	rules := sink.NameRules()
	if c.To == "{topic}" && from == into {
		rules = connector.NameRules{} // the same name in another cluster
	}
	return transform.New(c.Config, rules)
}

// Estimates of what a process of Pigeonhole holds, in bytes.
const (
	typicalMemory    = 220 << 20 // while its sinks keep up; about 240 MiB resident with its program code
	memoryBase       = 32 << 20  // without routes
	memoryPerRoute   = 4 << 20   // connections, their buffers and the metadata of topics
	memoryPerMessage = 5 << 9    // besides its bytes, here and in the sink's client
)

// memoryNeed returns how many bytes the process needs for its routes.
func (c Config) memoryNeed() int64 {
	held := int64(memoryBase)
	for _, rc := range c.Routes {
		held += rc.memory(c.bounds(rc))
	}
	return held + held/4 // for the garbage collector
}

// memory returns how many bytes a route with these bounds may hold.
func (c RouteConfig) memory(bounds InFlight) int64 {
	_, source := only(c.Source)
	_, sink := c.sink()
	inFlight := int64(bounds.Bytes)
	held := memoryPerRoute + inFlight + memoryPerMessage*int64(bounds.Messages) +
		source.Memory(bounds.Messages, inFlight) + sink.Memory(bounds.Messages, inFlight)
	if _, deadLetters := c.deadLetterSink(); deadLetters != nil {
		held += memoryPerRoute + deadLetters.Memory(bounds.Messages, inFlight)
	}
	return held
}
