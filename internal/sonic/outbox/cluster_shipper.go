package outbox

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ClusterConfig says which effects to ship, and to which topic. All fields but Config must be set.
type ClusterConfig struct {
	Zone  string
	Topic string // of the zone
	// Config describes the settings that must be equal in all zones, see [wire.Config].
	Config string
	// Library is what primaries are opened with. Its bound is for all primaries together.
	Library redislib.Config
	// Reached returns, for each other zone, the time in milliseconds up to which this zone has applied
	// all of its effects. It is called for each message.
	Reached func() map[string]uint64
	// Horizon returns the id before which all zones have all effects of all zones. Versions before it
	// are pruned; zero: none.
	Horizon func() wire.ID
}

// Primaries leads to the primaries of a Redis Cluster.
type Primaries interface {
	// Map returns the latest map, the same pointer until it changes; nil: not known yet.
	Map() *cluster.Map
	Refresh() // asks the cluster for its map again soon
	At(address string) *redis.Client
}

var _ Primaries = (*primaries.Primaries)(nil)

// ClusterShipper ships the effects of all slots of a zone that has a Redis Cluster: it publishes
// them to the zone's topic. Of several shippers of a zone, in one process or in many, only the one
// that owns the topic works. The others wait. All methods are safe for concurrent use.
type ClusterShipper struct {
	cfg     ClusterConfig
	cluster Primaries
	client  *messaging.Client
	log     *zap.Logger
	metrics *Metrics
	health  *health.State

	mu     sync.Mutex
	status Status
	bytes  map[cluster.Primary]int64
	errs   map[cluster.Primary]error // why a primary is not read at present
}

// NewCluster returns a shipper. It sends no request before Run.
func NewCluster(cfg ClusterConfig, c Primaries, client *messaging.Client, log *zap.Logger, m *Metrics) *ClusterShipper {
	log = log.Named("outbox")
	return &ClusterShipper{
		cfg: cfg, cluster: c, client: client, log: log, metrics: m, health: health.New(log),
		bytes: map[cluster.Primary]int64{}, errs: map[cluster.Primary]error{},
	}
}

// Status returns the state of the shipper. Stored is the greatest id in the topic.
func (s *ClusterShipper) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Bytes returns how many bytes the streams of all primaries held when this process last asked. It is
// 0 if it does not own the topic.
func (s *ClusterShipper) Bytes() (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.bytes {
		sum += n
	}
	return sum
}

// Unhealthy returns why this process does not ship all effects at present. It is nil if it does, or
// if another process owns the topic.
func (s *ClusterShipper) Unhealthy() error { return s.health.Current() }

// Run ships until ctx ends. It retries after failures of the network, Redis and Pulsar. It returns
// an error only if trying again does not help.
func (s *ClusterShipper) Run(ctx context.Context) error {
	return runShipper(ctx, s.health, s.shipWhileOwner)
}

// shipWhileOwner waits until this process owns the topic, and ships as long as it does.
func (s *ClusterShipper) shipWhileOwner(ctx context.Context) error {
	end := topicEnd{zone: s.cfg.Zone, topic: s.cfg.Topic, client: s.client, log: s.log}
	w, err := end.acquire(ctx)
	if err != nil {
		return err
	}
	defer end.release(w)
	defer s.released()
	ctx, storing, done := whileOwner(ctx, w)
	defer done()
	o := &clusterOwner{ClusterShipper: s, end: end, writer: w, storeContext: storing, queue: newClusterQueue(), shipped: newShippedSlots(), watermarks: map[*primaryReader]primaryWatermark{}}
	if err := o.takeOver(ctx); err != nil {
		return err
	}
	s.health.Set(nil)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return o.readAll(running) })
	group.Go(func() error { return o.store(running) })
	group.Go(func() error { return o.reportShipped(running) })
	group.Go(func() error { return o.prune(running) })
	err = group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *ClusterShipper) released() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Owner = false
	clear(s.bytes)
	clear(s.errs)
}

// setPrimary records the state of a primary. err is why it is not read; nil: it is read.
func (s *ClusterShipper) setPrimary(p cluster.Primary, bytes int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.errs[p]
	s.bytes[p], s.errs[p] = bytes, err
	if before != nil || err != nil {
		s.setHealth()
	}
}

// forgetPrimary removes the state of a node that is no primary any more.
func (s *ClusterShipper) forgetPrimary(p cluster.Primary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bytes, p)
	delete(s.errs, p)
	s.setHealth()
}

// setHealth reports the errors of all primaries. The caller holds the lock.
func (s *ClusterShipper) setHealth() {
	var errs []error
	for err := range maps.Values(s.errs) {
		errs = append(errs, err)
	}
	s.health.Set(errors.Join(errs...))
}

// clusterOwner ships with one writer.
type clusterOwner struct {
	*ClusterShipper
	end          topicEnd
	writer       *messaging.EntryWriter
	storeContext context.Context
	queue        *clusterQueue
	shipped      *shippedSlots

	storing    sync.Mutex // held while a message is made of the queue and stored
	tail       wire.Tail  // the stored end of the topic; under storing
	watermarks map[*primaryReader]primaryWatermark

	mu         sync.Mutex
	lastStored primaries.Marker // the last message
}

// primaryWatermark is a time before which all effects of a primary are stored.
type primaryWatermark struct {
	ms uint64
	of *cluster.Map // the primary had taken the slots that it has by this map
}

// marker returns the last message that is stored.
func (o *clusterOwner) marker() primaries.Marker {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastStored
}

// mapEvery is how often readAll looks for a new map.
const mapEvery = 20 * time.Millisecond

// readAll reads all primaries of the cluster, and follows changes of its map.
func (o *clusterOwner) readAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		readers := map[cluster.Primary]*primaryReader{}
		stop := map[cluster.Primary]context.CancelFunc{}
		defer func() {
			for _, cancel := range stop {
				cancel()
			}
		}()
		var known *cluster.Map
		ticker := time.NewTicker(mapEvery)
		defer ticker.Stop()
		for {
			if m := o.cluster.Map(); m != nil && m != known {
				known = m
				now := map[cluster.Primary]bool{}
				for _, p := range m.Primaries() {
					now[p] = true
				}
				// A primary that has taken over is recovered from the topic: before that nothing of the
				// former one may be left that is stored later.
				for p, r := range readers {
					if !now[p] {
						stop[p]()
						o.queue.end(r)
						o.forgetPrimary(p)
						delete(readers, p)
						delete(stop, p)
					}
				}
				for p := range now {
					if readers[p] == nil {
						r := &primaryReader{clusterOwner: o, primary: p, first: true}
						reading, cancel := context.WithCancel(ctx)
						readers[p], stop[p] = r, cancel
						group.Go(func() error { return r.run(reading) })
					}
				}
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}
