package eventbridge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/console"
	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/preprocessor"
	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, targets, registry, then each role, then the server in front of all. The stop runs backwards: no more
// requests, matches and deliveries under way finished, publishers flushed, the client closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	s := &service{rt: rt, cfg: cfg, client: client, topics: registry.Topics{Namespace: cfg.Topics.Namespace}}
	if err := s.openTargets(); err != nil {
		return err
	}
	if err := s.openRegistry(ctx); err != nil {
		return err
	}
	if cfg.Export != "" || cfg.Import != "" || cfg.Reseal {
		defer rt.Shutdown()
		return s.exchange(ctx)
	}
	s.tuneMemory()
	// Before the roles begin: a process whose address is taken must not take over partitions first.
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

// begin starts the roles, and returns what answers requests and what is told of the states of connections.
func (s *service) begin() (router *chi.Mux, state func(net.Conn, http.ConnState), err error) {
	if err := s.join(); err != nil {
		return nil, nil, err
	}
	router, state = chi.NewRouter(), func(net.Conn, http.ConnState) {}
	if s.cfg.Roles.Has(RoleProcessor) {
		s.process()
	}
	if s.cfg.Roles.Has(RoleEngine) {
		if err := s.match(); err != nil {
			return nil, nil, err
		}
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
	topics  registry.Topics
	factory *target.Factory
	checks  registry.Checks
	pulsar  *registry.Pulsar
	store   *registry.Store
	status  *registry.Status

	processor *processor.Processor // nil without the role
	senders   atomic.Bool          // are asked who they are
}

func (s *service) admin() bool { return s.cfg.Pulsar.AdminURL != "" }

// openTargets makes what delivers, and what checks targets when subscribers are put.
func (s *service) openTargets() (err error) {
	if len(s.cfg.Connections.Redis) > 0 { // the client has one log for the whole process
		redis.SetLogger(redisLog{s.rt.Log.Named("redis")})
	}
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
		s.rt.Log.Info("pulsar.admin_url is not set: buses have one partition, backlogs are not known, and topics of what was deleted stay")
	}
	s.pulsar = registry.NewPulsar(s.client, s.topics, s.admin())
	var begin opening
	s.rt.Check("registry", begin.check)
	s.store, err = registry.Open(ctx, s.client, s.topics, registry.Options{
		Instance: s.cfg.instance(), Keys: keys, Checks: s.checks, Pulsar: s.pulsar, Partitions: s.admin(),
		Log: s.rt.Log, Metrics: registry.NewMetrics(s.rt.Metrics), Waiting: begin.failed,
	})
	if err != nil {
		return err
	}
	begin.read(s.store)
	s.rt.OnStop("registry", s.store.Close)
	s.rt.Go("registry", s.store.Run)
	return nil
}

// join has the other instances know of this one.
func (s *service) join() (err error) {
	s.status, err = registry.NewStatus(s.client, s.topics, registry.StatusOptions{
		Instance: s.cfg.instance(), Roles: s.cfg.Roles, Version: app.ThisBuild().Version, Log: s.rt.Log,
	})
	if err != nil {
		return err
	}
	s.rt.Go("status", s.status.Run)
	s.rt.Go("namespace", s.watchNamespace)
	return nil
}

// process delivers to subscribers.
func (s *service) process() {
	s.processor = processor.New(processor.Options{
		Client: s.client, Source: s.store, Topics: s.topics, Targets: s.factory, Instance: s.cfg.instance(), Instances: s.status,
		Admin: s.admin(), Config: s.cfg.Processor, Log: s.rt.Log, Metrics: processor.NewMetrics(s.rt.Metrics),
	})
	s.rt.Go("states of subscribers", s.tellStates)
	s.rt.Go("processor", s.processor.Run)
}

// match matches events against rules.
func (s *service) match() error {
	letters, err := messaging.Dial(context.Background(), s.cfg.Pulsar, messaging.WithLogger(s.rt.Log), messaging.WithRegisterer(s.rt.Metrics))
	if err != nil {
		return err
	}
	s.rt.OnStop("pulsar for dead letters", letters.Close)
	e := engine.New(engine.Options{
		Client: s.client, DeadLetters: letters, Source: s.store, Topics: s.topics, Maker: s.pulsar, Config: s.cfg.Engine, Log: s.rt.Log,
		Metrics: engine.NewMetrics(s.rt.Metrics),
	})
	s.rt.Go("status of the engine", func(ctx context.Context) error { return s.tell(ctx, e) })
	s.rt.Go("engine", e.Run)
	s.rt.Check("engine", func(context.Context) error { return e.Trouble() })
	return nil
}

// tellEvery is how long others wait to hear what the engine does.
const tellEvery = 100 * time.Millisecond

// tell tells others by which revision of the registry the engine matches, and which partitions it has.
func (s *service) tell(ctx context.Context, e *engine.Engine) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	told := make(map[string]bool)
	for {
		s.status.SetRevision(e.Applied())
		now := e.Status()
		for bus := range now {
			s.status.SetPartitions(bus, now[bus].Partitions)
			told[bus] = true
		}
		for bus := range told {
			if _, there := now[bus]; !there {
				s.status.SetPartitions(bus, nil)
				delete(told, bus)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ingest takes events.
func (s *service) ingest(r chi.Router) (state func(net.Conn, http.ConnState), err error) {
	open := func(ctx context.Context, topic string) (preprocessor.Publisher, error) {
		return s.client.Publisher(ctx, topic, s.cfg.Ingest.Profile)
	}
	p, err := preprocessor.New(s.cfg.Ingest, "ingest.", s.store, s.topics, s.client.Unreachable, open, s.rt.Log.Named("preprocessor"), s.rt.Metrics)
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
	p.Routes(r.With(s.knownHost))
	return p.ConnState, nil
}

// manage serves the API and the console.
func (s *service) manage(r chi.Router) error {
	o := api.Options{Registry: s.store, Checks: s.checks, Instances: s.status, Jobs: s.store, Instance: s.cfg.instance(), Version: app.ThisBuild().Version, Log: s.rt.Log}
	if s.processor != nil { // else the interface must be nil
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

// serve starts the server in front of all.
func (s *service) serve(ln net.Listener, handler http.Handler, state func(net.Conn, http.ConnState)) {
	limits := s.cfg.Ingest.Limits
	server := door.NewServer(limits.ReadTimeout, s.cfg.Ingest.RequestTimeout, state, handler)
	s.rt.ServeWith("http", door.LimitConnections(ln, limits.Connections), server, door.Serve(s.rt.Log.Named("http"), server, s.cfg.HTTP.WebConfigFile))
}
