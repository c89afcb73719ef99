package publish

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/flush"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
)

// Publishers are the open publishers of a client, and their shared parts.
type Publishers struct {
	*cluster.Cluster

	readers  *read.Readers // for entry writers, which read the last stored message
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
// call can hang for good. A producer that comes later is closed.
func (c *Publishers) TryOpen(ctx context.Context, topic string, profile Profile) (*Publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, c.CallTimeout())
	defer cancel()
	return c.Open(ctx, topic, profile)
}

const watchEvery = time.Second

// watcher wakes the partitions' goroutines: it sends to each added channel once every watchEvery.
// Its timer runs only while channels are added. Its methods may be called from any goroutine.
type watcher struct {
	mu     sync.Mutex
	wakes  map[chan struct{}]struct{}
	active atomic.Int32 // their number
	timer  *time.Timer
}

func newWatcher() *watcher {
	w := &watcher{wakes: make(map[chan struct{}]struct{})}
	w.timer = time.AfterFunc(time.Hour, w.tick)
	w.timer.Stop()
	return w
}

// add sends to wake from now on. wake holds one item; while it is full, nothing is sent.
func (w *watcher) add(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes[wake] = struct{}{}
	w.active.Store(int32(len(w.wakes)))
	if len(w.wakes) == 1 {
		w.timer.Reset(watchEvery)
	}
}

// remove stops sending to wake, also when wake was not added.
func (w *watcher) remove(wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wakes, wake)
	w.active.Store(int32(len(w.wakes)))
}

func (w *watcher) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wake := range w.wakes {
		select {
		case wake <- struct{}{}:
		default: // its goroutine has not yet received the last one
		}
	}
	if len(w.wakes) > 0 {
		w.timer.Reset(watchEvery)
	}
}

func (w *watcher) count() int { return int(w.active.Load()) }
