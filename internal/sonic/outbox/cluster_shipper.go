package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ClusterConfig is the configuration of a [ClusterShipper]. All fields must be set.
type ClusterConfig struct {
	Config
	// Library is what primaries are opened with. Its bound is for all primaries together.
	Library redislib.Config
	// Reached returns, for each other zone, the time in milliseconds up to which this zone has applied
	// all of its effects. It is called for each message.
	Reached func() map[string]uint64
	// Horizon returns the id before which all zones have all effects of all zones. Versions before it
	// are pruned; zero: none.
	Horizon func() wire.ID
}

// ClusterShipper is the [Shipper] of a zone that has a Redis Cluster: it ships the effects of all
// slots. All methods are safe for concurrent use.
type ClusterShipper struct {
	*publisher
	cfg     ClusterConfig
	cluster *primaries.Primaries
}

// NewCluster returns a shipper. It sends no request before Run.
func NewCluster(cfg ClusterConfig, c *primaries.Primaries, client *messaging.Client, log *zap.Logger, m *Metrics) *ClusterShipper {
	return &ClusterShipper{publisher: newPublisher(cfg.Config, client, log, m), cfg: cfg, cluster: c}
}

// Run ships until ctx ends, see [Shipper.Run].
func (s *ClusterShipper) Run(ctx context.Context) error { return s.run(ctx, s.ship) }

// ship ships until ctx ends or the topic is lost.
func (s *ClusterShipper) ship(ctx context.Context, w *topicWriter) error {
	o := newClusterOwner(s, w)
	if err := o.takeOver(ctx); err != nil {
		return err
	}
	s.health.Set(nil)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return o.readAll(running, group) })
	group.Go(func() error { return o.store(running) })
	group.Go(func() error { return o.reportShipped(running) })
	group.Go(func() error { return o.prune(running) })
	return group.Wait()
}

// clusterOwner ships with one writer.
type clusterOwner struct {
	*ClusterShipper
	*topicWriter // its packer is under storing
	queue        *clusterQueue
	shipped      *shippedSlots

	storing    sync.Mutex // held while a message is made of the queue and stored
	watermarks map[*primaryReader]primaryWatermark

	// The lock of publisher is held for these.
	errs       map[cluster.Primary]error // why a primary is not read at present
	lastStored primaries.Marker          // the last message
}

func newClusterOwner(s *ClusterShipper, w *topicWriter) *clusterOwner {
	return &clusterOwner{
		ClusterShipper: s, topicWriter: w, queue: newClusterQueue(), shipped: newShippedSlots(),
		watermarks: map[*primaryReader]primaryWatermark{}, errs: map[cluster.Primary]error{},
	}
}

// primaryWatermark is a time before which all effects of a primary are stored.
type primaryWatermark struct {
	ms uint64
	of *cluster.Map // the primary had taken the slots that it has by this map
}

// setPrimary records why a primary is not read; nil: it is read, or it is no primary any more.
func (o *clusterOwner) setPrimary(p cluster.Primary, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.errs[p] == nil && err == nil {
		return
	}
	if o.errs[p] = err; err == nil {
		delete(o.errs, p)
	}
	o.health.Set(errors.Join(slices.Collect(maps.Values(o.errs))...))
}

// marker returns the last message that is stored.
func (o *clusterOwner) marker() primaries.Marker {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastStored
}

// mapEvery is how often readAll looks for a new map.
const mapEvery = 20 * time.Millisecond

// readAll reads all primaries of the cluster, in goroutines of group, and follows changes of its map.
func (o *clusterOwner) readAll(ctx context.Context, group *errgroup.Group) error {
	readers := map[cluster.Primary]*primaryReader{}
	var known *cluster.Map
	for backoff.Sleep(ctx, mapEvery) {
		m := o.cluster.Map()
		if m == nil || m == known {
			continue
		}
		known = m
		// A primary that has taken over is recovered from the topic: before that nothing of the
		// former one may be left that is stored later.
		for p, r := range readers {
			if !slices.Contains(m.Primaries(), p) {
				r.stop() // first: it puts nothing into the queue any more
				o.queue.remove(r)
				o.setPrimary(p, nil)
				delete(readers, p)
			}
		}
		for _, p := range m.Primaries() {
			if readers[p] == nil {
				reading, stop := context.WithCancel(ctx)
				r := &primaryReader{clusterOwner: o, primary: p, stop: stop}
				readers[p] = r
				group.Go(func() error {
					defer stop()
					return r.run(reading)
				})
			}
		}
	}
	return nil
}
