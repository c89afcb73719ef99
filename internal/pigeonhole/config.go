package pigeonhole

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
	"github.com/aviaryhq/aviary/internal/setup"
)

// Config is the configuration of pigeonhole.
type Config struct {
	app.Common `yaml:",inline"`
	// Name is the name of this process on /routes. Default pigeonhole.
	Name string `yaml:"name"`
	// InFlight bounds what all routes have taken and not stored yet. Each route has an equal share,
	// unless it sets its own bounds. Defaults 20000 messages, 128MiB.
	InFlight InFlight `yaml:"in_flight"`
	// Routes to run. Default: none.
	Routes []RouteConfig `yaml:"routes"`
	// Setup says what -setup creates at Pulsar for the routes. Nothing else uses it.
	Setup setup.Section `yaml:"setup"`
}

// InFlight is a bound on what is held in memory.
type InFlight struct {
	// Messages and Bytes that are taken and not stored yet, of the route or of all of them.
	Messages int          `yaml:"messages"`
	Bytes    config.Bytes `yaml:"bytes"`
}

// Guarantees of a route.
const (
	AtLeastOnce     = "at_least_once"    // nothing is lost; after a failure some messages are stored twice
	EffectivelyOnce = "effectively_once" // Kafka to Pulsar: nothing is stored twice either
)

// Values of provenance: what messages carry of their path.
const (
	provenanceFull = "full"
	provenanceHops = "hops"
)

// Values of refused: what happens to refused messages.
const (
	refusedDeadLetter = "dead_letter"
	refusedStop       = "stop"
	refusedStub       = "stub" // for dead letters only
)

// RouteConfig is one route.
type RouteConfig struct {
	// Name of the route, in logs, metrics and /routes. Must be set.
	Name string `yaml:"name"`
	// Source and Sink are one system each.
	Source SourceConfig `yaml:"source"`
	Sink   SinkConfig   `yaml:"sink"`
	// Filter, changes and the destination.
	transform.Config `yaml:",inline"`
	// Guarantee is at_least_once or effectively_once. The latter is from Kafka to Pulsar only, with
	// sink.pulsar.partition source, for topics that nobody else writes to, each partition from one
	// partition of one source topic. It needs deduplication enabled on the topics or their namespace
	// (pulsar-admin namespaces set-deduplication --enable, or topicPolicies set-deduplication):
	// without it, which this client cannot see, a connection that breaks may store messages twice. A
	// topic must keep its last message: give it retention, or a subscription that lags. Default
	// at_least_once.
	Guarantee string `yaml:"guarantee"`
	// Refused says what becomes of a message that can never be stored: dead_letter, or stop, which
	// stops the route. Default stop, or dead_letter where dead_letter.to is set.
	Refused string `yaml:"refused"`
	// DeadLetter is where refused messages go.
	DeadLetter DeadLetter `yaml:"dead_letter"`
	// MaxHops bounds how many routes may pass a message on. Default 8.
	MaxHops int `yaml:"max_hops"`
	// Provenance says what a message carries of its way: full, where it was taken from first and
	// the topics and queues it has been taken from since; or hops, the latter only, which is what
	// stops loops. Dead letters always carry it in full, and effectively_once needs it. Default
	// full.
	Provenance string `yaml:"provenance"`
	// InFlight bounds what the route has taken and not stored. Default: its share of the whole.
	InFlight InFlight `yaml:"in_flight"`
	// CommitEvery is the interval at which what is stored is committed at the source. Default
	// 100ms.
	CommitEvery time.Duration `yaml:"commit_every"`
	// MinBackoff and MaxBackoff bound the wait before failed messages are sent again. Defaults
	// 100ms and 10s.
	MinBackoff time.Duration `yaml:"min_backoff"`
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// DeadLetter is where refused messages go.
type DeadLetter struct {
	// To is a topic, or a queue, of Sink.
	To string `yaml:"to"`
	// Sink takes them. Default: the route's own, with partition: key.
	Sink *SinkConfig `yaml:"sink"`
	// Refused says what becomes of a dead letter that is refused, too, being too large for
	// instance: stub, it is kept without key, value and headers, with its place at the source; or
	// stop, which stops the route, the message staying at the source. Default: stub where the
	// source keeps what has been read, which are Kafka and streams of RabbitMQ, else stop: the body
	// would be gone for good.
	Refused string `yaml:"refused"`
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
func (c *RouteConfig) SetDefaults() {
	c.Guarantee, c.Provenance, c.MaxHops = AtLeastOnce, provenanceFull, 8
	c.CommitEvery, c.MinBackoff, c.MaxBackoff = 100*time.Millisecond, 100*time.Millisecond, 10*time.Second
}

// Warnings warns if there are no routes. The process runs without routes: a reload can add some.
func (c Config) Warnings() []string {
	if len(c.Routes) > 0 {
		return nil
	}
	return []string{"routes: there are none, and so nothing is replicated"}
}

// Validate returns the faults that are not of a single route.
func (c Config) Validate() error {
	var errs []error
	if !validName(c.Name) {
		errs = append(errs, config.Fault("name", "must be letters, digits, '-', '_' and '.', at most 64 of them, got %q", c.Name))
	}
	errs = append(errs,
		config.CheckPositive("in_flight.messages", c.InFlight.Messages),
		config.CheckPositive("in_flight.bytes", c.InFlight.Bytes))
	first := map[string]int{}
	for i, r := range c.Routes {
		if j, taken := first[r.Name]; taken {
			errs = append(errs, config.Fault(fmt.Sprintf("routes[%d].name", i), "must be unique, %q is the name of routes[%d] too", r.Name, j))
			continue
		}
		first[r.Name] = i
	}
	return errors.Join(errs...)
}

func validName(name string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString(name)
}

// Validate returns every fault of the route itself; its parts return their own.
func (c RouteConfig) Validate() error {
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if !validName(c.Name) {
		fault("name", "must be letters, digits, '-', '_' and '.', at most 64 of them, got %q", c.Name)
	}
	errs = append(errs, config.CheckOneOf("guarantee", c.Guarantee, AtLeastOnce, EffectivelyOnce))
	if c.Guarantee == EffectivelyOnce && !c.supportsEffectivelyOnce() {
		fault("guarantee", "effectively_once needs source.kafka and sink.pulsar: the other systems have no positions to resume from")
	}
	if c.Guarantee == EffectivelyOnce && c.Sink.Pulsar != nil && !c.Sink.Pulsar.FollowsSource() {
		fault("sink.pulsar.partition", "must be source with guarantee effectively_once, got %q", c.Sink.Pulsar.Partition)
	}
	errs = append(errs, config.CheckOneOf("provenance", c.Provenance, provenanceFull, provenanceHops))
	if c.Guarantee == EffectivelyOnce && c.Provenance == provenanceHops {
		fault("provenance", "must be full with guarantee effectively_once, which resumes by it")
	}
	if c.Refused != "" {
		errs = append(errs, config.CheckOneOf("refused", c.Refused, refusedDeadLetter, refusedStop))
	}
	if c.Refused == refusedDeadLetter && c.DeadLetter.To == "" {
		fault("dead_letter.to", "must be set with refused: dead_letter")
	}
	if c.DeadLetter.Sink != nil && c.DeadLetter.To == "" {
		fault("dead_letter.to", "must be set with dead_letter.sink")
	}
	if c.DeadLetter.Refused != "" {
		errs = append(errs, config.CheckOneOf("dead_letter.refused", c.DeadLetter.Refused, refusedStub, refusedStop))
	}
	if c.MaxHops < 1 {
		fault("max_hops", "must be > 0, got %d", c.MaxHops)
	}
	if c.InFlight.Messages < 0 {
		fault("in_flight.messages", "must be >= 0, got %d", c.InFlight.Messages)
	}
	if c.CommitEvery <= 0 {
		fault("commit_every", "must be > 0, got %s", c.CommitEvery)
	}
	if c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff {
		fault("min_backoff", "must be > 0 and at most max_backoff, got %s and %s", c.MinBackoff, c.MaxBackoff)
	}
	return errors.Join(errs...)
}

// deadLetters reports whether refused messages are kept.
func (c RouteConfig) deadLetters() bool {
	return c.Refused == refusedDeadLetter || c.Refused == "" && c.DeadLetter.To != ""
}

// bounds returns the bounds of a route: its own, or its share of the process's bounds.
func (c Config) bounds(r RouteConfig) InFlight {
	b := r.InFlight
	if b.Messages == 0 {
		b.Messages = max(c.InFlight.Messages/len(c.Routes), 1)
	}
	if b.Bytes == 0 {
		b.Bytes = max(c.InFlight.Bytes/config.Bytes(len(c.Routes)), 1)
	}
	return b
}
