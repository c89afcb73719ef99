package connector

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// System is the factory of one system: it makes the sections of its sources and sinks, with their
// defaults. A section makes everything else that Pigeonhole needs. Further interfaces of this file
// are for systems that can do more.
type System struct {
	Name   string // the key of the section
	Source func() SourceConfig
	Sink   func() SinkConfig
}

// SourceConfig is the section of the configuration for a source of one system. It makes the source.
type SourceConfig interface {
	// NewSource makes the source of a valid section; config.Load validates sections. The source
	// connects when it runs.
	NewSource(o Options) Source
	// Memory returns how many bytes the source may hold besides the messages in flight, whose
	// bounds are messages and bytes.
	Memory(messages int, bytes int64) int64
	// Try returns the trial of -config.connect, which checks that the source can read. path is the
	// path of the section in the configuration; end closes the connections.
	Try(path string) (t trial.Trial, end func())
}

// SinkConfig is the section of the configuration for a sink of one system. It makes the sink.
type SinkConfig interface {
	// NewSink makes the sink of a valid section; config.Load validates sections. The sink connects
	// when it runs.
	NewSink(o Options) Sink
	// Memory returns how many bytes the sink may hold besides the messages in flight, whose bounds
	// are messages and bytes.
	Memory(messages int, bytes int64) int64
	// Try returns the trial of -config.connect, which checks that the sink can write to the
	// destinations to. path is the path of the section in the configuration; end closes the
	// connections.
	Try(path string, to []trial.Place) (t trial.Trial, end func())
	// NameRules returns the rules for destinations whose names hold values of messages.
	NameRules() NameRules
}

// PartitionedSource is the section of a source whose topics have numbered partitions.
type PartitionedSource interface {
	// Names returns the configured topics; none if a pattern chooses them.
	Names() []string
	// Partitions returns how many partitions a topic has.
	Partitions(ctx context.Context, topic string) (int, error)
	// Offsets reports whether the messages of a partition have ascending numbers, by which a sink
	// knows what it has stored.
	Offsets() bool
}

// PartitionedSink is the section of a sink whose topics have numbered partitions.
type PartitionedSink interface {
	// FollowsSource reports whether messages keep the number of their partition.
	FollowsSource() bool
	// Partitions returns how many partitions a topic has: 0 if it does not exist.
	Partitions(ctx context.Context, topic string) (int, error)
	// ForDeadLetters returns the section of a sink in which messages do not keep their partition:
	// the topic of dead letters may have fewer.
	ForDeadLetters() SinkConfig
}

// ExactSink is the section of a sink that can store each offset of a source exactly once.
type ExactSink interface {
	// ForEffectivelyOnce returns the section of a route with that guarantee.
	ForEffectivelyOnce() SinkConfig
	// TryEffectivelyOnce returns the trials of what the guarantee needs of the servers.
	TryEffectivelyOnce(path, topic string) []trial.Trial
}

// SetupSection is a section in whose Pulsar cluster -setup creates what the route needs.
type SetupSection interface{ SetupCluster() messaging.Config }

// SetupSource is a SetupSection that has subscriptions.
type SetupSource interface {
	SetupSection
	// AddTo adds the subscriptions to the cluster. path is the path of the section.
	AddTo(cluster *setup.Cluster, path string)
}

// NameRules are a system's rules for names that hold values of messages. A value fills a name; it
// must not decide which namespace, partition or internal topic the name means. The zero value has
// no rules.
type NameRules struct {
	// Separator stands between a namespace and the names in it. 0: there are no namespaces.
	Separator byte
	// Reserved returns why the system reserves a complete name, as a clause for an error; "" if it
	// does not. Two names have the same clause only if they are reserved for the same reason. nil: the
	// system reserves no names.
	Reserved func(name string) string
}

// Source is where messages come from.
type Source interface {
	// Run reads until ctx ends, offers the messages to pipelines, and returns when the pipelines are
	// closed. An error is final: the route stops.
	Run(ctx context.Context, pipelines *pipeline.Set) error
	// Lag returns how many messages are behind the committed position. It is safe for concurrent
	// use.
	Lag(ctx context.Context) (int64, error)
}

// Sink is where messages go.
type Sink interface {
	pipeline.Sink
	// PlaceName returns the name of the destination to in the hops of messages.
	PlaceName(to string) string
	// Run keeps the connection until ctx ends. It returns when every message given to Send has its
	// outcome.
	Run(ctx context.Context) error
}

// ResumableSink is a sink of an [ExactSink] section: it can tell what it has stored.
type ResumableSink interface {
	// Resume returns the highest offset of from's topic that is stored on the partition of topic
	// with from's partition number; ok is false if there is none. Until Release no other process
	// writes to that partition. An error made by pipeline.Refuse is final.
	Resume(ctx context.Context, topic string, from *message.From) (offset int64, ok bool, err error)
	// Oversized reports whether the sink refuses m because of its size.
	Oversized(m *message.Message) bool
	// Release allows another process to write to the partition.
	Release(topic string, partition int32)
}

// Reconnect returns the pauses between attempts to connect: at most 5s, without jitter.
func Reconnect() backoff.Backoff { return backoff.Backoff{Max: 5 * time.Second} }
