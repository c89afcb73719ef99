package target

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Options are what targets need besides their subscriber.
type Options struct {
	// Config and Connections are the sections of the configuration.
	Config      Config
	Connections Connections
	// Pulsar is the cluster that Eventbridge itself uses. Targets have their own client of it.
	Pulsar messaging.Config
	// Topics are Eventbridge's own topics, which cannot be targets.
	Topics model.Topics
	// Log takes log lines, and what log targets write. Default: nothing is logged.
	Log *zap.Logger
	// Registerer takes the metrics of Pulsar clients. Default: they are not exported.
	Registerer prometheus.Registerer
	// Resolver resolves the names of webhooks. Default: the system's.
	Resolver *net.Resolver
}

// Factory makes targets, and holds what they share: the pool of connections to webhooks, and
// clients of other systems. A client exists as long as a target uses it. Factory is safe for
// concurrent use.
type Factory struct {
	cfg         Config
	connections Connections
	own         Pulsar
	topics      model.Topics
	log         *zap.Logger
	registerer  prometheus.Registerer
	resolver    *net.Resolver
	guard       *Guard
	shared      *pool // of webhooks without TLS settings of their own

	mu     sync.Mutex
	sinks  map[sinkKey]*sharedSink
	closed bool
}

// sinkKey identifies a sink: its system, its connection and its destination. The destination is
// empty if one sink serves all.
type sinkKey struct{ system, connection, destination string }

// NewFactory makes a factory. It connects to nothing: targets connect when they deliver. The
// configuration must be valid.
func NewFactory(o Options) (*Factory, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	own := Pulsar{}
	own.SetDefaults()
	own.Config = o.Pulsar
	f := &Factory{
		cfg: o.Config, connections: o.Connections, own: own, topics: o.Topics, log: o.Log.Named("target"), registerer: o.Registerer, resolver: o.Resolver,
		guard: NewGuard(o.Config.Allow, o.Config.Ports), sinks: map[sinkKey]*sharedSink{},
	}
	settings, err := clientTLS(nil)
	if err != nil {
		return nil, err
	}
	f.shared = f.newPool(settings, idleConnections)
	return f, nil
}

// newPool makes a pool of connections with these TLS settings. idle bounds the idle connections.
func (f *Factory) newPool(settings *tls.Config, idle int) *pool {
	return newPool(func() *http.Transport { return newTransport(f.guard, f.resolver, settings, idle) })
}

// defaultTimeout is the default of model.Delivery.Timeout.
const defaultTimeout = 10 * time.Second

// New makes the target of a subscriber. If the target is not valid, the error says why, as Check
// does.
func (f *Factory) New(s *model.Subscriber) (Target, error) {
	var faults []error
	f.Check(&s.Target, func(pointer, problem string) { faults = append(faults, fmt.Errorf("target%s %s", pointer, problem)) })
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	timeout := time.Duration(s.Delivery.Timeout)
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	open := kinds()[s.Target.Kind()].open
	if open == nil {
		return nil, errors.New("the target must have exactly one kind")
	}
	return open(f, s, timeout)
}

// Close closes the sinks of targets that were not closed, and idle connections. Until
// ctx ends it waits for events in flight. Targets deliver nothing afterwards.
func (f *Factory) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	sinks := slices.Collect(maps.Values(f.sinks))
	clear(f.sinks)
	f.mu.Unlock()
	f.shared.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, s := range sinks {
		wg.Go(func() { s.stop(ctx) })
	}
	wg.Wait()
	return nil
}

var errClosed = errors.New("the targets are closed")

// runner is a sink of internal/connector.
type runner interface {
	pipeline.Sink
	Run(ctx context.Context) error
}

// sharedSink is a sink, and the number of targets that use it.
type sharedSink struct {
	factory *Factory
	key     sinkKey
	present atomic.Pointer[pipeline.Sink] // replaced after Run has failed
	users   int                           // guarded by the factory's lock
	health  *health.State

	end         context.CancelFunc // ends Run
	cancelDrain context.CancelFunc // makes Run stop waiting for events in flight
	finished    chan struct{}
}

// use returns the sink of key. If there is none, begin makes it.
func (f *Factory) use(key sinkKey, begin func(drain context.Context, report func(error)) runner) (*sharedSink, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}
	if s := f.sinks[key]; s != nil {
		s.users++
		return s, nil
	}
	drain, cancelDrain := context.WithCancel(context.Background())
	s := &sharedSink{
		factory: f, key: key, users: 1, cancelDrain: cancelDrain, finished: make(chan struct{}),
		health: health.New(f.log.With(zap.String("system", key.system), zap.String("connection", key.connection), zap.String("destination", key.destination))),
	}
	sink := begin(drain, s.health.Set)
	s.set(sink)
	running, end := context.WithCancel(context.Background())
	s.end = end
	f.sinks[key] = s
	go func() {
		defer close(s.finished)
		s.run(running, sink, func() runner { return begin(drain, s.health.Set) })
	}()
	return s, nil
}

func (s *sharedSink) set(sink pipeline.Sink) { s.present.Store(&sink) }

const (
	restartPause    = time.Second
	maxRestartPause = 30 * time.Second
)

// run runs a sink until ctx ends. If a sink fails, for example because it cannot read a file, run
// begins another one after a pause.
func (s *sharedSink) run(ctx context.Context, sink runner, begin func() runner) {
	pause := backoff.Backoff{Min: restartPause, Max: maxRestartPause}
	for {
		err := sink.Run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.health.Set(err)
		if !pause.Wait(ctx) {
			return
		}
		sink = begin()
		s.set(sink)
	}
}

// release closes the sink when its last user releases it.
func (s *sharedSink) release(ctx context.Context) {
	f := s.factory
	f.mu.Lock()
	s.users--
	last := s.users == 0
	if last && f.sinks[s.key] == s {
		delete(f.sinks, s.key)
	}
	f.mu.Unlock()
	if last {
		s.stop(ctx)
	}
}

// stop ends the sink and waits for it. Until ctx ends, events in flight may finish.
func (s *sharedSink) stop(ctx context.Context) {
	s.end()
	select {
	case <-s.finished:
	case <-ctx.Done():
	}
	s.cancelDrain()
	<-s.finished
}

func (f *Factory) kafkaSink(connection, topic string) (*sharedSink, error) {
	c := f.connections.Kafka[connection]
	return f.use(sinkKey{"kafka", connection, topic}, func(drain context.Context, report func(error)) runner {
		return c.sink().NewSink(connector.Options{Log: f.log, Report: report, DrainContext: drain})
	})
}

func (f *Factory) rabbitMQSink(connection, exchange string) (*sharedSink, error) {
	c := f.connections.RabbitMQ[connection]
	return f.use(sinkKey{"rabbitmq", connection, exchange}, func(drain context.Context, report func(error)) runner {
		return c.sink(exchange).NewSink(connector.Options{Log: f.log, Report: report, DrainContext: drain})
	})
}

func (f *Factory) pulsarSink(connection string) (*sharedSink, error) {
	c := f.own
	if connection != "" {
		c = f.connections.Pulsar[connection]
	}
	return f.use(sinkKey{"pulsar", connection, ""}, func(drain context.Context, report func(error)) runner {
		return c.sink().NewSink(connector.Options{
			Log: f.log, Report: report, Registerer: f.registerer, DrainContext: drain,
		})
	})
}
