package publish

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/flush"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
)

// Publishers are the open publishers of a client, and what they share.
type Publishers struct {
	*cluster.Cluster

	readers  *read.Readers // for entry writers, which read what is stored
	metrics  publisherMetrics
	watcher  *watcher // of the partitions
	flushers flush.Flushers

	mu     sync.Mutex
	closed bool
	open   map[*Publisher]struct{}
}

// NewPublishers makes none yet: see Open and OpenWriter.
func NewPublishers(c *cluster.Cluster, readers *read.Readers, reg prometheus.Registerer) *Publishers {
	return &Publishers{
		Cluster: c, readers: readers, metrics: newMetrics(reg), watcher: newWatcher(), open: make(map[*Publisher]struct{}),
	}
}

// Close closes all publishers side by side. None is opened from then on.
func (c *Publishers) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	open := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	errs := make([]error, len(open))
	var wg sync.WaitGroup
	for i, p := range open {
		wg.Go(func() { errs[i] = p.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TryOpen opens a publisher, or gives up after several operation timeouts: the underlying
// call can hang for good. What comes later is closed.
func (c *Publishers) TryOpen(ctx context.Context, topic string, profile Profile) (*Publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, c.CallTimeout())
	defer cancel()
	return c.Open(ctx, topic, profile)
}
