package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
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

// Factory makes targets, and holds what they share: the connections to webhooks, and
// clients of other systems. A client exists as long as a target uses it. Factory is safe for
// concurrent use.
type Factory struct {
	connections Connections
	own         Pulsar
	topics      model.Topics
	log         *zap.Logger
	registerer  prometheus.Registerer
	resolver    *net.Resolver
	guard       *Guard
	shared      *http.Transport // of webhooks without TLS settings of their own

	mu     sync.Mutex
	sinks  map[sinkKey]*sharedSink
	closed bool
}

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
		connections: o.Connections, own: own, topics: o.Topics, log: o.Log.Named("target"),
		registerer: o.Registerer, resolver: o.Resolver,
		guard: NewGuard(o.Config.Allow, o.Config.Ports), sinks: map[sinkKey]*sharedSink{},
	}
	settings, err := clientTLS(nil)
	if err != nil {
		return nil, err
	}
	f.shared = f.newTransport(settings, idleConnections)
	return f, nil
}

// Check returns what a target has that this process cannot use: names of connections that the
// configuration does not have, addresses that webhooks must not have, keys and certificates that
// cannot be read. model.ValidateSubscriber has checked the rest before. Pointers are from the
// target. Check connects to nothing, and resolves no name.
func (f *Factory) Check(t *model.Target) (faults []model.Fault) {
	name := t.Kind()
	if k, known := kinds()[name]; known {
		faults = k.check(f, t)
	}
	for i := range faults {
		faults[i].Pointer = "/" + name + faults[i].Pointer
	}
	return faults
}

// New makes the target of a subscriber. If the target is not valid, the error says why, as Check
// does.
func (f *Factory) New(s *model.Subscriber) (Target, error) {
	if err := model.FaultList(f.Check(&s.Target)).Err(); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	k, known := kinds()[s.Target.Kind()]
	if !known {
		return nil, errors.New("the target must have exactly one kind")
	}
	return k.open(f, s, time.Duration(s.Delivery.Timeout))
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
