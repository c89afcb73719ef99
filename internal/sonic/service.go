// Package sonic is a Redis endpoint whose writes reach the Redis of every availability zone: it runs each command on this zone's Redis, where a
// library of functions notes what the command did, stores that in a geo-replicated topic, and applies what the other zones did.
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
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/trouble"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// service is what runs.
type service struct {
	cfg      Config // at the start
	inForce  Config // now, see change
	log      *zap.Logger
	lane     *lane.Lane
	proxy    *proxy.Proxy
	shipper  *outbox.Shipper
	appliers []*apply.Applier // of the zones behind the first
	gauge    *gauge
	eviction *eviction
	moved    atomic.Pointer[proxy.Proxy] // the same, told which Redis is the primary; nil until it is made
}

// found is told the run_id of a Redis that has taken the place of the one before. Clients' connections follow.
func (s *service) found(server string) {
	if p := s.moved.Load(); p != nil {
		p.Moved("", server)
	}
}

// demoted is told the run_id of a Redis that has become a replica. Clients' connections to it end.
func (s *service) demoted(server string) {
	if p := s.moved.Load(); p != nil {
		p.Demoted(server)
	}
}

// Build wires the service: Redis and its library, the shipper, an applier for each other zone, and the endpoint. The stop runs backwards: clients
// first, then what is under way to and from Pulsar.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	quiet()
	if cfg.Command.given() {
		return buildCommand(ctx, rt, cfg)
	}
	b, err := cfg.Redis.backend(rt.Log)
	if err != nil {
		return err
	}
	s := &service{cfg: cfg, inForce: cfg, log: rt.Log, eviction: newEviction(rt.Log)}
	db, control := cfg.Redis.control(b, s.found, s.demoted)
	rt.OnStop("redis", func(context.Context) error { return db.Close() })
	b.follow(rt, cfg.Zone)
	if err := awaitRedis(ctx, db, b, trouble.New(rt.Log.Named("redis"))); err != nil {
		return err
	}
	l := lane.New(db, cfg.lane())
	if err := outbox.Load(ctx, l, rt.Log, false); err != nil {
		return err
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	if err := checkNamespace(ctx, client, cfg, rt.Log); err != nil {
		return err
	}

	s.lane = l
	endpoint, err := cfg.proxy(b, rt.Log)
	if err != nil {
		return err
	}
	if s.proxy, err = proxy.New(endpoint, rt.Log, rt.Metrics); err != nil {
		return err
	}
	s.moved.Store(s.proxy)
	if b.sentinels != nil {
		b.sentinels.OnMove(func(address string) { s.proxy.Moved(address, "") })
	}
	s.gauge = newGauge(cfg.Outbox, db, l, rt.Log, s.proxy.SetWrites)
	s.shipper = outbox.New(cfg.shipper(), db, l, client, rt.Log, outbox.NewMetrics(rt.Metrics), func(id message.ID) {
		s.proxy.Shipped(onlyLane, id.String())
	})
	rt.Go("shipper", s.shipper.Run)
	if cfg.Ack == ackPublished {
		rt.Go("receipts", s.shipper.Follow)
	}
	m := apply.NewMetrics(rt.Metrics)
	for _, origin := range cfg.zones()[1:] {
		a := apply.New(cfg.applier(origin), l, client, rt.Log, m)
		s.appliers = append(s.appliers, a)
		rt.Go("applier of zone "+origin, a.Run)
	}
	rt.Go("outbox", s.gauge.run)
	rt.Go("role of redis", func(ctx context.Context) error { return control.watch(ctx, db, s.eviction) })
	if err := rt.Metrics.Register(newCollector(s)); err != nil {
		return err
	}
	rt.Handle("/zones", "the zones: connection, outbox, how far behind, what is the matter", http.HandlerFunc(s.page))
	rt.Check("redis", func(context.Context) error { return s.proxy.Ready() })
	rt.Check("writes", s.checkWrites)

	ln, err := rt.Listen(ctx, "redis", "listen", cfg.Listen)
	if err != nil {
		return err
	}
	app.OnReload(rt, s.change)
	cfg.warnOpen(rt.Log, ln.Addr())
	cfg.warnAlone(rt.Log)
	rt.Go("endpoint", func(ctx context.Context) error { return s.proxy.Serve(ctx, ln) })
	return nil
}

// checkWrites is the readiness check of what Redis holds.
func (s *service) checkWrites(ctx context.Context) error {
	state, err := s.lane.Look(ctx)
	switch full := s.gauge.state(); {
	case err != nil:
		return err
	case !state.Opened:
		return errors.New("no Sonic has opened this Redis: whichever owns the topic does")
	case !state.Ready:
		return fmt.Errorf("this Redis came back older than it was: it awaits the effects of %d zones", len(state.Behind))
	case full.full && s.gauge.bounds().Full != fullGoOn:
		return fmt.Errorf("the outbox is full: %d bytes of effects, the oldest %s old, wait for Pulsar", full.bytes, full.age.Round(time.Second))
	default:
		return nil
	}
}
