// Package sonic is a Redis proxy that replicates writes to the Redis of every availability zone. It
// runs each command on this zone's Redis, where a library of Redis functions records the command's
// effects. It stores these effects in a geo-replicated topic, and applies the effects of the other
// zones.
package sonic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// service holds the parts of a running Sonic. In front of a Redis Cluster cluster is not nil, and
// library and memory are nil. If it is that of a lone zone, shipper, appliers, monitor and primaries
// are nil, too.
type service struct {
	cfg        Config // at the start
	current    Config // in use now, see change
	log        *zap.Logger
	proxy      *proxy.Proxy
	cluster    *clusterState
	primaries  *primaryStates // only in front of a Redis Cluster
	library    *redislib.Library
	shipper    shipper
	appliers   []applier // of all zones but the first, which is this one
	monitor    *outboxMonitor
	memory     *memory
	builtProxy atomic.Pointer[proxy.Proxy] // equal to proxy; gets told which Redis is the primary; nil until the proxy is made
}

// shipper is the part that ships the zone's effects: [outbox.Shipper] or [outbox.ClusterShipper].
type shipper interface {
	Status() outbox.Status
	Unhealthy() error
}

// applier is the part that applies another zone's effects: [apply.Applier] or [apply.ClusterApplier].
type applier interface {
	Status() apply.Status
	Health() (at time.Time, now, last error)
	SetMaxClockSkew(d time.Duration)
}

// primaryFound is called with the run_id of a Redis that has replaced the previous one. The proxy
// reconnects to it.
func (s *service) primaryFound(server string) {
	if p := s.builtProxy.Load(); p != nil {
		p.SetPrimary("", server)
	}
}

// demoted is called with the run_id of a Redis that has become a replica. The proxy closes its
// connections to it.
func (s *service) demoted(server string) {
	if p := s.builtProxy.Load(); p != nil {
		p.Demoted(server)
	}
}

// Build wires the service. The stop runs in the reverse order: clients first, then messages in
// flight to and from Pulsar.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	disableClientLog()
	if cfg.Command.isSet() {
		return buildCommand(ctx, rt, cfg)
	}
	b, err := cfg.Redis.backend(rt.Log)
	if err != nil {
		return err
	}
	s := &service{cfg: cfg, current: cfg, log: rt.Log}
	if len(b.nodes) > 0 {
		err = s.buildCluster(ctx, rt, b)
	} else {
		err = s.buildReplicated(ctx, rt, b)
	}
	if err != nil {
		return err
	}
	return s.serve(ctx, rt)
}

// buildReplicated wires what is in front of one Redis: its library, the shipper, an applier for
// each other zone, and the proxy.
func (s *service) buildReplicated(ctx context.Context, rt *app.Runtime, b backend) error {
	cfg := s.cfg
	s.memory = newMemory(rt.Log)
	db, control := cfg.Redis.control(b, s.primaryFound, s.demoted)
	rt.OnStop("redis", func(context.Context) error { return db.Close() })
	b.follow(rt, cfg.Zone)
	if err := awaitRedis(ctx, db, b, health.New(rt.Log.Named("redis"))); err != nil {
		return err
	}
	l := redislib.New(db, cfg.library())
	if err := l.Load(ctx); redislib.NoMemory(err) {
		rt.Log.Error("cannot load the functions of this version: Redis has reached its maxmemory, and goes on with those that it has", zap.Error(err))
	} else if err != nil {
		return fmt.Errorf("cannot load the library: %w", err)
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	if err := checkNamespace(ctx, client, cfg, rt.Log); err != nil {
		return err
	}

	s.library = l
	databases := databasesOf(ctx, db)
	endpoint, err := cfg.proxy(b, rt.Log)
	if err != nil {
		return err
	}
	if s.proxy, err = proxy.New(endpoint, rt.Log, rt.Metrics); err != nil {
		return err
	}
	s.builtProxy.Store(s.proxy)
	if b.sentinels != nil {
		b.sentinels.OnMove(func(address string) { s.proxy.SetPrimary(address, "") })
	}
	s.monitor = newOutboxMonitor(cfg.Outbox, measureOne(l), rt.Log, s.proxy.SetWriteMode)
	shipper := outbox.New(cfg.shipper(databases), db, l, client, rt.Log, outbox.NewMetrics(rt.Metrics), func(id wire.ID) {
		s.proxy.Published(id.String())
	})
	s.shipper = shipper
	rt.Go("shipper", shipper.Run)
	if cfg.Ack == ackPublished {
		rt.Go("receipts", shipper.Follow)
	}
	m := apply.NewMetrics(rt.Metrics)
	for _, origin := range cfg.zones()[1:] {
		a := apply.New(cfg.applier(origin, databases), l, client, rt.Log, m)
		s.appliers = append(s.appliers, a)
		rt.Go("applier of zone "+origin, a.Run)
	}
	rt.Go("outbox", s.monitor.run)
	rt.Go("role of redis", func(ctx context.Context) error { return control.watchRole(ctx, db, s.memory) })
	if err := rt.Metrics.Register(newCollector(s)); err != nil {
		return err
	}
	rt.Check("redis", func(context.Context) error { return s.proxy.Ready() })
	rt.Check("writes", s.checkWrites)
	return nil
}

// serve starts the proxy and what an operator can see and change.
func (s *service) serve(ctx context.Context, rt *app.Runtime) error {
	rt.Handle("/zones", "the zones: connection, outbox, lag, current errors", http.HandlerFunc(s.zonesPage))
	ln, err := rt.Listen(ctx, "redis", "listen", s.cfg.Listen)
	if err != nil {
		return err
	}
	app.OnReload(rt, s.change)
	s.cfg.warnUnprotected(rt.Log, ln.Addr())
	s.cfg.warnNoOtherZone(rt.Log)
	rt.Go("endpoint", func(ctx context.Context) error { return s.proxy.Serve(ctx, ln) })
	return nil
}

// checkWrites is the readiness check of whether Redis accepts writes.
func (s *service) checkWrites(ctx context.Context) error {
	state, err := s.library.ReadState(ctx)
	switch full := s.monitor.state(); {
	case err != nil:
		return err
	case state.History == redislib.HistoryRejected:
		return errors.New("this Redis and the topic have different histories: see the log of the Sonic that owns the topic, and run sonic -repair")
	case !state.Opened:
		return errors.New("no Sonic has opened this Redis yet: the Sonic that owns the topic opens it")
	case !state.Ready:
		return fmt.Errorf("this Redis has older data than before: it waits for effects of %d zones", len(state.Behind))
	case full.full && s.monitor.bounds().Full != fullDrop:
		return errors.New(full.problem())
	case s.memory.problem() != "":
		return fmt.Errorf("this Redis has reached its maxmemory: %s", s.memory.problem())
	default:
		return nil
	}
}

// checkClusterWrites is the readiness check of whether a Redis Cluster accepts writes. It fails if no
// primary does: another Sonic of the zone could not serve more.
func (s *service) checkClusterWrites(context.Context) error {
	if err := s.primaries.checkAny(); err != nil {
		return err
	}
	if full := s.monitor.state(); full.full {
		return errors.New(full.problem())
	}
	return nil
}
