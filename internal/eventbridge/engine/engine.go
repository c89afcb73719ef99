package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source has the buses and subscribers. A store.Store is one.
type Source interface {
	// Watch calls f for the current snapshot and after each change, from one goroutine, until stop
	// is called.
	Watch(f func(*store.Snapshot)) (stop func())
}

// Maker creates topics that are missing. A store.Pulsar is one.
type Maker interface {
	MakeBus(ctx context.Context, b *model.Bus) error
	MakeSubscriber(ctx context.Context, b *model.Bus, s *model.Subscriber) error
}

// Engine matches the events of all buses, in the partitions that it owns. Engines of several
// processes share the partitions. All methods are safe for concurrent use.
type Engine struct {
	client                *messaging.Client
	source                Source
	topics                model.Topics
	maker                 Maker
	cfg                   Config
	log                   *zap.Logger
	metrics               *Metrics
	capacity              windowCapacity
	openSlots, retrySlots chan struct{}
	working               sync.WaitGroup // of buses and of owned partitions
	applied               atomic.Int64

	mu    sync.Mutex
	buses map[string]*bus
}

// Options are what an engine needs. All must be set.
type Options struct {
	Client  *messaging.Client
	Source  Source
	Topics  model.Topics
	Maker   Maker
	Config  Config // valid
	Log     *zap.Logger
	Metrics *Metrics
}

// New makes an engine.
func New(o Options) *Engine {
	return &Engine{
		client: o.Client, source: o.Source, topics: o.Topics, maker: o.Maker, cfg: o.Config, log: o.Log.Named("engine"), metrics: o.Metrics,
		capacity: windowCapacity{most: int64(o.Config.DedupEvents)}, buses: make(map[string]*bus),
		openSlots: make(chan struct{}, parallelOpens), retrySlots: make(chan struct{}, parallelOpens),
	}
}

// Run matches until ctx ends, then finishes the events that it has received, and returns. It may be
// called once. Failures of the network and of Pulsar are not errors: Run tries again.
func (e *Engine) Run(ctx context.Context) error {
	stop := e.source.Watch(func(s *store.Snapshot) { e.apply(ctx, s) })
	<-ctx.Done()
	stop()
	e.working.Wait()
	return nil
}

// Applied is the revision of the registry by whose rules events are matched: the engine matches
// each event that it takes from now on by this revision or a later one.
func (e *Engine) Applied() int64 { return e.applied.Load() }

// Partitions returns the partitions of each bus' topic that the engine owns, by the bus' name.
func (e *Engine) Partitions() map[string][]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string][]int, len(e.buses))
	for name, b := range e.buses {
		b.mu.Lock()
		all[name] = slices.Sorted(maps.Keys(b.owned))
		b.mu.Unlock()
	}
	return all
}

// Unhealthy returns why buses are not consumed, nil if all are. A bus that waits for a send topic is
// consumed. It names some of them, sorted by name: the log repeats the error.
func (e *Engine) Unhealthy() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	more := 0
	for _, name := range slices.Sorted(maps.Keys(e.buses)) {
		switch err := e.buses[name].Unhealthy(); {
		case err == nil:
		case len(errs) < namedBuses:
			errs = append(errs, fmt.Errorf("bus %s: %w", name, err))
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d buses more", more))
	}
	return errors.Join(errs...)
}

// namedBuses is how many buses the error of Unhealthy names.
const namedBuses = 3

// Unhealthy returns why the bus is not consumed, nil if it is.
func (b *bus) Unhealthy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := cmp.Or(b.held, b.unhealthy); err != nil {
		return err
	}
	if b.consumer != nil {
		return b.consumer.Unhealthy()
	}
	return nil
}

// apply makes the engine follow a snapshot.
func (e *Engine) apply(ctx context.Context, s *store.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, b := range e.buses {
		now := s.Bus(name)
		if now != nil && now.Created.Equal(b.newest.Load().Created) {
			continue
		}
		b.halt()
		b.begin.Do(func() { close(b.done) }) // it has never begun
		delete(e.buses, name)
		if now == nil {
			e.metrics.forget(name)
			continue
		}
		e.buses[name] = e.newBus(ctx, now, b.done)
	}
	if ctx.Err() != nil {
		return
	}
	for config := range s.Buses() {
		b := e.buses[config.Name]
		if b == nil {
			b = e.newBus(ctx, config, nil)
			e.buses[config.Name] = b
		}
		if b.update(s) {
			b.begin.Do(func() { e.working.Go(b.run) }) // once it has all rules
		}
	}
	e.applied.Store(s.Revision())
}

// newBus makes what works for a bus. It begins once after is closed: what worked for the name
// before has ended.
func (e *Engine) newBus(ctx context.Context, config *model.Bus, after <-chan struct{}) *bus {
	log := e.log.With(zap.String("bus", config.Name))
	b := &bus{
		engine: e, name: config.Name, log: log, metrics: e.metrics.of(config.Name), rules: newRules(), after: after,
		lines: log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
			return zapcore.NewSamplerWithOptions(c, time.Second, 5, 1000)
		})),
		owned: make(map[int]*partition), done: make(chan struct{}),
	}
	b.newest.Store(config)
	b.running, b.halt = context.WithCancel(ctx)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	b.queues, b.endQueues = newSendQueues(life, b, 0), end
	return b
}
