// Package sonic is a Redis proxy that replicates writes to the Redis of every availability zone. It
// runs each command on this zone's Redis, where a library of Redis functions records the command's
// effects. It stores these effects in a geo-replicated topic, and applies the effects of the other
// zones. The package connects the packages below it, and may not import another service.
package sonic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// service holds the parts of a running Sonic. In front of a Redis Cluster cluster is not nil, and
// library is nil. If the zone is alone then, shipper, appliers, monitor and memory are nil, too.
type service struct {
	cfg      Config // at the start
	current  Config // in use now, see change
	proxy    *proxy.Proxy
	cluster  *clusterState
	library  *redislib.Library
	shipper  shipper
	appliers []applier // of all zones but the first, which is this one
	monitor  *outboxMonitor
	memory   *memory
}

// shipper is the part that ships the zone's effects: [outbox.Shipper] or [outbox.ClusterShipper].
type shipper interface {
	Run(ctx context.Context) error
	Status() outbox.Status
	Unhealthy() error
}

// applier is the part that applies another zone's effects: [apply.Applier] or [apply.ClusterApplier].
type applier interface {
	Run(ctx context.Context) error
	Status() apply.Status
	Health() (at time.Time, now, last error)
}

// Build wires the service. A write takes this way:
//
//	client -> proxy -> function in Redis: the command, and its effects into the outbox -> reply
//	outbox -> shipper -> topic of this zone -> geo-replication -> applier of another zone -> its Redis
//
// The stop runs in the reverse order: clients first, then messages in flight to and from Pulsar.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	disableClientLog()
	if cfg.Command.isSet() {
		return buildCommand(ctx, rt, cfg)
	}
	b, err := cfg.Redis.backend(rt.Log)
	if err != nil {
		return err
	}
	endpoint, err := cfg.proxy(b, rt.Log)
	if err != nil {
		return err
	}
	s := &service{cfg: cfg, current: cfg}
	if len(b.nodes) > 0 {
		err = s.buildCluster(ctx, rt, b, endpoint)
	} else {
		err = s.buildSingle(ctx, rt, b, endpoint)
	}
	if err != nil {
		return err
	}
	return s.serve(ctx, rt)
}

// buildSingle wires what is in front of one Redis: the proxy, the library, the shipper, and an
// applier for each other zone.
func (s *service) buildSingle(ctx context.Context, rt *app.Runtime, b backend, endpoint proxy.Config) (err error) {
	cfg := s.cfg
	if s.proxy, err = proxy.New(endpoint, rt.Log, rt.Metrics); err != nil {
		return err
	}
	db, control := b.control(func(server string) { s.proxy.SetPrimary("", server) }, s.proxy.Demoted)
	rt.OnStop("redis", func(context.Context) error { return db.Close() })
	if b.sentinels != nil {
		b.sentinels.OnMove(func(address string) { s.proxy.SetPrimary(address, "") })
	}
	b.follow(rt, cfg.Zone)
	if err := b.awaitRedis(ctx, db, health.New(rt.Log.Named("redis"))); err != nil {
		return err
	}
	s.library, s.memory = redislib.New(db, cfg.library()), newMemory(rt.Log)
	if err := s.library.Load(ctx); redislib.NoMemory(err) {
		rt.Log.Error("cannot load this version's functions, because Redis has reached its maxmemory: Redis keeps the functions of the previous version", zap.Error(err))
	} else if err != nil {
		return fmt.Errorf("cannot load the library: %w", err)
	}
	client, err := s.dialTopics(ctx, rt)
	if err != nil {
		return err
	}
	databases := databasesOf(ctx, db)
	s.monitor = newOutboxMonitor(cfg.Outbox, measureOne(s.library), rt.Log, s.proxy.SetWriteMode)
	shipper := outbox.New(cfg.shipper(databases), db, s.library, client, rt.Log, outbox.NewMetrics(rt.Metrics), func(id wire.ID) {
		s.proxy.Published(id.String())
	})
	s.shipper = shipper
	if cfg.Ack == ackPublished {
		rt.Go("receipts", shipper.Follow)
	}
	m := apply.NewMetrics(rt.Metrics)
	for _, origin := range cfg.zones()[1:] {
		s.appliers = append(s.appliers, apply.New(cfg.applier(origin, databases), s.library, client, rt.Log, m))
	}
	s.replicate(rt, s.checkWrites)
	rt.Go("role of redis", func(ctx context.Context) error { return control.watchRole(ctx, db, s.memory) })
	rt.Check("redis", func(context.Context) error { return s.proxy.Ready() })
	return nil
}

// replicate starts the parts that replicate. check is the readiness check of writes.
func (s *service) replicate(rt *app.Runtime, check func(context.Context) error) {
	rt.Go("shipper", s.shipper.Run)
	for i, a := range s.appliers {
		rt.Go("applier of zone "+s.cfg.zones()[i+1], a.Run)
	}
	rt.Go("outbox", s.monitor.run)
	rt.Check("writes", check)
}

// serve starts the proxy and what an operator can see and change.
func (s *service) serve(ctx context.Context, rt *app.Runtime) error {
	if err := rt.Metrics.Register(collector{s}); err != nil {
		return err
	}
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
		return errors.New("no Sonic has opened this Redis yet: the owner of the topic does; /zones has the reason if it cannot")
	case !state.Ready:
		return fmt.Errorf("this Redis has older data than before: it waits for effects of %d zones", len(state.Behind))
	case full.full && s.monitor.bounds().Full != fullDrop:
		return errors.New(full.problem())
	}
	if problem := s.memory.problems().full; problem != "" {
		return fmt.Errorf("this Redis has reached its maxmemory: %s", problem)
	}
	return nil
}

// checkClusterWrites is the readiness check of whether a Redis Cluster accepts writes. It fails if no
// primary does: another Sonic of the zone could not serve more.
func (s *service) checkClusterWrites(context.Context) error {
	if err := s.cluster.checkAny(); err != nil {
		return err
	}
	if full := s.monitor.state(); full.full {
		return errors.New(full.problem())
	}
	return nil
}

// warnUnprotected logs a warning if clients without a password or a certificate can connect, or if
// passwords are sent unencrypted. Redis in its protected mode would refuse clients without a
// password. Sonic does not: a firewall or a container's network may keep its address private.
func (c Config) warnUnprotected(log *zap.Logger, at net.Addr) {
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return
	}
	address := zap.Stringer("address", at)
	switch known := c.TLS.ClientCAFile != ""; {
	case len(c.Users) == 0 && !known:
		log.Warn("everybody who reaches this address may read and write all keys: set users or tls.client_ca_file, or keep the address private", address)
	case len(c.Users) > 0 && !c.TLS.enabled():
		log.Warn("users send their passwords to this address without encryption: set tls, or keep the address private", address)
	}
}

// warnNoOtherZone logs a warning if ack is published and there is no other zone: Sonic then stores
// nothing in Pulsar.
func (c Config) warnNoOtherZone(log *zap.Logger) {
	if c.Ack == ackPublished && len(c.zones()) == 1 {
		log.Warn("ack: published has no effect, because zones names no other zone: Sonic stores nothing in Pulsar and answers as with ack: local")
	}
}
