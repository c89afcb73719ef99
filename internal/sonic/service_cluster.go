package sonic

import (
	"context"
	"math"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// buildCluster wires what is in front of a Redis Cluster. In a zone that is alone nothing is
// replicated, and the primaries do not have the function library.
func (s *service) buildCluster(ctx context.Context, rt *app.Runtime, b backend, endpoint proxy.Config) (err error) {
	nodes := b.cluster(rt.Log)
	endpoint.Cluster, endpoint.SplitMSET, endpoint.SlotOutboxes = nodes, s.cfg.Redis.SplitMSET, !s.cfg.isAlone()
	if s.proxy, err = proxy.New(endpoint, rt.Log, rt.Metrics); err != nil {
		return err
	}
	s.cluster = &clusterState{cluster: nodes, unreachable: s.proxy.Unreachable}
	nodes.OnChange(s.proxy.ClusterChanged)
	rt.Go("redis cluster", nodes.Run)
	if err := b.awaitCluster(ctx, nodes, health.New(rt.Log.Named("redis"))); err != nil {
		return err
	}
	if !s.cfg.isAlone() {
		if err := s.replicateCluster(ctx, rt, nodes, b); err != nil {
			return err
		}
	}
	rt.Go("state of the redis cluster", func(ctx context.Context) error {
		return s.cluster.watch(ctx, health.New(rt.Log.Named("redis")), health.New(rt.Log.Named("writes")))
	})
	rt.Check("redis", func(context.Context) error { return s.cluster.ready() })
	return nil
}

// replicateCluster wires the shipper, an applier for each other zone, and what watches whether
// primaries take writes. The shipper that owns the topic loads the library at all primaries.
func (s *service) replicateCluster(ctx context.Context, rt *app.Runtime, nodes *cluster.Cluster, b backend) error {
	cfg := s.cfg
	client, err := s.dialTopics(ctx, rt)
	if err != nil {
		return err
	}
	p := primaries.New(nodes, b.nodeClient)
	rt.OnStop("redis", func(context.Context) error { return p.Close() })
	s.memory = newMemory(rt.Log)
	s.cluster.primary, s.cluster.memory = p.At, s.memory
	s.monitor = newOutboxMonitor(cfg.Outbox, s.cluster.measure, rt.Log, s.proxy.SetWriteMode)

	m := apply.NewMetrics(rt.Metrics)
	progress := clusterProgress{zone: cfg.Zone, others: map[string]clusterApplier{}}
	for _, origin := range cfg.zones()[1:] {
		a := apply.NewCluster(cfg.applier(origin, ""), p, client, rt.Log, m)
		s.appliers, progress.others[origin] = append(s.appliers, a), a
	}
	s.shipper = outbox.NewCluster(cfg.clusterShipper(progress), p, client, rt.Log, outbox.NewMetrics(rt.Metrics))
	s.replicate(rt, s.checkClusterWrites)
	return nil
}

// clusterApplier says how far a zone with a Redis Cluster and another zone are. See
// [apply.ClusterApplier].
type clusterApplier interface {
	Reached() uint64
	OtherReached() map[string]uint64
}

// clusterProgress says how far the zones are, as a zone with a Redis Cluster knows it.
type clusterProgress struct {
	zone   string
	others map[string]clusterApplier // by zone
}

// reached returns, for each other zone, the time in milliseconds up to which this zone has applied
// all of its effects.
func (p clusterProgress) reached() map[string]uint64 {
	all := map[string]uint64{}
	for zone, a := range p.others {
		all[zone] = a.Reached()
	}
	return all
}

// horizonMargin is how long versions are kept that no zone needs. A primary that was restarted, or has
// taken over, gets effects again that are behind its marker, which is written once a second.
const horizonMargin = time.Minute

// horizon returns the id before which all zones have all effects of all zones, less horizonMargin. It
// is zero while that of a zone is not known.
func (p clusterProgress) horizon() wire.ID {
	least := uint64(math.MaxUint64)
	for zone, a := range p.others {
		other := a.OtherReached()
		least = min(least, a.Reached(), other[p.zone])
		for third := range p.others {
			if third != zone {
				least = min(least, other[third])
			}
		}
	}
	margin := uint64(horizonMargin.Milliseconds())
	if len(p.others) == 0 || least <= margin {
		return wire.ID{}
	}
	return wire.ID{Ms: least - margin}
}
