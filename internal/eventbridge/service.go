package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/console"
	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/ingest"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, targets, registry, then each role, then the HTTP server. The
// stop runs backwards: the server takes no more requests, matches and deliveries in flight finish,
// publishers are flushed, and the client is closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	s := &service{rt: rt, cfg: cfg, client: client, topics: model.Topics{Namespace: cfg.Topics.Namespace}}
	if err := s.openTargets(); err != nil {
		return err
	}
	if cfg.command() != "" {
		defer rt.Shutdown()
		return s.runCommand(ctx)
	}
	if err := s.openRegistry(ctx); err != nil {
		return err
	}
	s.tuneMemory()
	// Listen before the roles begin: a process whose address is in use must not take over
	// partitions first.
	ln, err := rt.Listen(ctx, "http", "http.listen", cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	router, state, err := s.begin()
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s.serve(ln, router, state)
	return nil
}

// begin starts the roles. It returns the handler of requests, and a function that gets the states
// of connections.
func (s *service) begin() (router *chi.Mux, state func(net.Conn, http.ConnState), err error) {
	if err := s.join(); err != nil {
		return nil, nil, err
	}
	router, state = chi.NewRouter(), func(net.Conn, http.ConnState) {}
	if s.cfg.Roles.Has(RoleProcessor) {
		s.process()
	}
	if s.cfg.Roles.Has(RoleEngine) {
		s.match()
	}
	if s.cfg.Roles.Has(RolePreprocessor) {
		if state, err = s.ingest(router); err != nil {
			return nil, nil, err
		}
	}
	return router, state, s.manage(router)
}

// service is what the roles of one process share.
type service struct {
	rt      *app.Runtime
	cfg     Config
	client  *messaging.Client
	topics  model.Topics
	factory *target.Factory
	checks  model.Checks
	pulsar  *store.Pulsar
	store   *store.Store
	status  *instances.Status

	opened  atomic.Pointer[store.Store] // nil until the registry is read
	waiting atomic.Pointer[error]       // why the registry is not read yet; nil before the first attempt

	processor *delivery.Processor // nil without the role
	senders   atomic.Bool         // senders have to authenticate
}

func (s *service) admin() bool { return s.cfg.Pulsar.AdminURL != "" }

// openTargets makes the factory of targets, and the checks of targets when subscribers are put.
func (s *service) openTargets() (err error) {
	s.factory, err = target.NewFactory(target.Options{
		Config: s.cfg.Targets, Connections: s.cfg.Connections, Pulsar: s.cfg.Pulsar, Topics: s.topics, Log: s.rt.Log, Registerer: s.rt.Metrics,
	})
	if err != nil {
		return err
	}
	s.rt.OnStop("targets", s.factory.Close)
	s.checks = checksOf(s.factory)
	return nil
}

// openRegistry reads the registry, and keeps reading it. It waits for Pulsar.
func (s *service) openRegistry(ctx context.Context) (err error) {
	keys, err := s.cfg.Secrets.keys()
	if err != nil {
		return err
	}
	if !s.admin() {
		s.rt.Log.Info("pulsar.admin_url is not set: buses have one partition, topics of deleted buses and subscribers remain, and neither backlogs nor the settings of the namespace are known")
	}
	s.pulsar = store.NewPulsar(s.client, s.topics, s.admin())
	s.rt.Check("registry", s.checkRegistry)
	s.store, err = store.Open(ctx, s.client, s.topics, store.Options{
		Instance: s.cfg.instance(), Keys: keys, Checks: s.checks, Pulsar: s.pulsar, Partitions: s.admin(),
		Log: s.rt.Log, Metrics: store.NewMetrics(s.rt.Metrics), Waiting: func(err error) { s.waiting.Store(&err) },
	})
	if err != nil {
		return err
	}
	s.opened.Store(s.store)
	s.rt.OnStop("registry", s.store.Close)
	s.rt.Go("registry", s.store.Run)
	return nil
}

// checkRegistry is the readiness check of the registry. Until it is read, the error says what the
// start waits for: Pulsar may be unavailable, or its address may be wrong.
func (s *service) checkRegistry(ctx context.Context) error {
	if opened := s.opened.Load(); opened != nil {
		return opened.Check(ctx)
	}
	if err := s.waiting.Load(); err != nil {
		return fmt.Errorf("the registry is not read yet: %w", *err)
	}
	return errors.New("the registry is not read yet")
}

// join makes this instance known to the others.
func (s *service) join() (err error) {
	s.status, err = instances.NewStatus(s.client, s.topics, instances.StatusOptions{
		Instance: s.cfg.instance(), Roles: s.cfg.Roles, Version: app.ThisBuild().Version, Log: s.rt.Log,
	})
	if err != nil {
		return err
	}
	s.rt.Go("status", s.status.Run)
	s.rt.Go("namespace", s.logPolicies)
	return nil
}

// process starts to deliver to subscribers.
func (s *service) process() {
	s.processor = delivery.New(delivery.Options{
		Client: s.client, Source: s.store, Topics: s.topics, Targets: s.factory, Instance: s.cfg.instance(), Instances: s.status,
		Config: s.cfg.Processor, Log: s.rt.Log, Metrics: s.rt.Metrics,
	})
	s.rt.Go("states of subscribers", s.publishStates)
	s.rt.Go("processor", s.processor.Run)
}

// match starts to match events against rules.
func (s *service) match() {
	e := engine.New(engine.Options{
		Client: s.client, Source: s.store, Topics: s.topics, Maker: s.pulsar, Config: s.cfg.Engine, Log: s.rt.Log,
		Metrics: engine.NewMetrics(s.rt.Metrics),
	})
	s.rt.Go("status of the engine", func(ctx context.Context) error { return s.publishEngineStatus(ctx, e) })
	s.rt.Go("engine", e.Run)
	s.rt.Check("engine", func(context.Context) error { return e.Unhealthy() })
}

// ingest starts to take events.
func (s *service) ingest(r chi.Router) (state func(net.Conn, http.ConnState), err error) {
	open := func(ctx context.Context, topic string) (ingest.Publisher, error) {
		return s.client.Publisher(ctx, topic, s.cfg.Ingest.Profile)
	}
	p, err := ingest.New(s.cfg.Ingest, s.store, s.topics, s.client.Unreachable, open, s.rt.Log.Named("preprocessor"), s.rt.Metrics)
	if err != nil {
		return nil, err
	}
	s.rt.OnStop("preprocessor", p.Close)
	s.rt.Go("preprocessor", p.Run)
	s.rt.Check("preprocessor", p.Check)
	inForce := s.cfg
	app.OnReload(s.rt, func(_ context.Context, changed Config) error {
		if err := inForce.fixed(changed); err != nil {
			return err
		}
		if err := p.Change(changed.Ingest); err != nil {
			return err
		}
		inForce = changed
		s.senders.Store(len(changed.Ingest.Tenants) > 0)
		return nil
	})
	s.senders.Store(len(s.cfg.Ingest.Tenants) > 0)
	p.Routes(r.With(httpserver.Hosts(s.cfg.HTTP.Hosts).Middleware(s.senders.Load)))
	return p.ConnState, nil
}

// manage serves the API and the console.
func (s *service) manage(r chi.Router) error {
	o := api.Options{Registry: s.store, Checks: s.checks, Instances: s.status, StoredJob: s.store.Job, Version: app.ThisBuild().Version, Log: s.rt.Log}
	if s.processor != nil { // otherwise the interface must be nil
		o.Processor = s.processor
	}
	tokens, err := s.cfg.API.tokens(s.rt.Log)
	if err != nil {
		return err
	}
	o.Access = api.Access{Tokens: tokens, Hosts: s.cfg.HTTP.Hosts}
	if tokens == nil && !loopback(s.cfg.HTTP.Listen) {
		s.rt.Log.Warn("api.tokens is empty: everybody who reaches http.listen may read and change all buses and subscribers", zap.String("listen", s.cfg.HTTP.Listen))
	}
	a, err := api.New(o)
	if err != nil {
		return err
	}
	a.Routes(r)
	console.Routes(r)
	return nil
}

// serve starts the HTTP server.
func (s *service) serve(ln net.Listener, handler http.Handler, state func(net.Conn, http.ConnState)) {
	limits := s.cfg.Ingest.Limits
	server := httpserver.NewServer(limits.ReadTimeout, s.cfg.Ingest.RequestTimeout, state, handler)
	s.rt.ServeWith("http", httpserver.LimitConnections(ln, limits.Connections), server, httpserver.Serve(s.rt.Log.Named("http"), server, s.cfg.HTTP.WebConfigFile))
}

// loopback reports whether only this machine can reach a listen address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
