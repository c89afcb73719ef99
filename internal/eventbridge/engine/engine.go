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

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source tells the engine of buses and subscribers. A registry.Store is one.
type Source interface {
	// Watch calls f for the present snapshot and after each change, from one goroutine, until stop.
	Watch(f func(*registry.Snapshot)) (stop func())
}

// Maker makes topics that are missing. A registry.Pulsar is one.
type Maker interface {
	MakeBus(ctx context.Context, b *registry.Bus) error
	MakeSubscriber(ctx context.Context, b *registry.Bus, s *registry.Subscriber) error
}

// Engine matches the events of all buses, those of the partitions that it owns. Engines of several processes share the
// partitions. All methods are safe for concurrent use.
type Engine struct {
	client  *messaging.Client
	letters *messaging.Client // for dead letters
	source  Source
	topics  registry.Topics
	maker   Maker
	cfg     Config
	log     *zap.Logger
	metrics *Metrics
	room    windowRoom
	turns   turns
	working sync.WaitGroup
	applied atomic.Int64

	mu    sync.Mutex
	buses map[string]*bus
}

// Options are what an engine works with. All must be set but DeadLetters.
type Options struct {
	Client *messaging.Client
	// DeadLetters stores copies that send topics do not take. It should have connections of its own: the client ends those over which it has asked for a
	// topic that no broker serves, again and again. Default: Client.
	DeadLetters *messaging.Client

	Source  Source
	Topics  registry.Topics
	Maker   Maker
	Config  Config // valid
	Log     *zap.Logger
	Metrics *Metrics
}

// New makes an engine.
func New(o Options) *Engine {
	return &Engine{
		client: o.Client, letters: cmp.Or(o.DeadLetters, o.Client), source: o.Source, topics: o.Topics, maker: o.Maker, cfg: o.Config, log: o.Log.Named("engine"), metrics: o.Metrics,
		room: windowRoom{most: int64(o.Config.DedupEvents)}, buses: make(map[string]*bus), turns: newTurns(),
	}
}

// Run matches until ctx ends, then finishes what is here, and returns. It may be called once. What the network and
// Pulsar do is no error: it tries again.
func (e *Engine) Run(ctx context.Context) error {
	stop := e.source.Watch(func(s *registry.Snapshot) { e.apply(ctx, s) })
	<-ctx.Done()
	stop()
	e.mu.Lock()
	all := make([]*bus, 0, len(e.buses))
	for _, b := range e.buses {
		all = append(all, b)
	}
	e.mu.Unlock()
	for _, b := range all {
		b.begin.Do(func() { close(b.done) }) // it has never begun
		<-b.done
	}
	e.working.Wait()
	return nil
}

// Applied is the revision of the registry by whose rules events are matched: each event that this engine takes from
// now on is matched by it or a later one.
func (e *Engine) Applied() int64 { return e.applied.Load() }

// BusStatus is what the engine does for one bus.
type BusStatus struct {
	Bus        string `json:"bus"`
	Partitions []int  `json:"partitions"` // those that this engine has
	Rules      int    `json:"rules"`
	Trouble    string `json:"trouble,omitempty"`
}

// Status returns what the engine does, by the name of the bus.
func (e *Engine) Status() map[string]BusStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]BusStatus, len(e.buses))
	for name, b := range e.buses {
		s := BusStatus{Bus: name, Partitions: b.partitions(), Rules: b.rules.index.Len()}
		if err := b.Trouble(); err != nil {
			s.Trouble = err.Error()
		}
		all[name] = s
	}
	return all
}

// Trouble says what is the matter with buses, nil when nothing is. It names some of them, the first by name: the log repeats it.
func (e *Engine) Trouble() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	more := 0
	for _, name := range slices.Sorted(maps.Keys(e.buses)) {
		switch err := e.buses[name].Trouble(); {
		case err == nil:
		case len(errs) < toldBuses:
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

// toldBuses is how many buses an error names.
const toldBuses = 3

// Trouble is why the bus is not consumed, nil when it is.
func (b *bus) Trouble() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held != nil {
		return b.held
	}
	if b.trouble == nil && b.consumer != nil {
		return b.consumer.Trouble()
	}
	return b.trouble
}

// apply makes the engine follow a snapshot.
func (e *Engine) apply(ctx context.Context, s *registry.Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, b := range e.buses {
		now := s.Bus(name)
		if now != nil && now.Created.Equal(b.newest.Load().Created) {
			continue
		}
		b.halt()
		b.begin.Do(func() { close(b.done) }) // it has never begun
		e.working.Go(func() { <-b.done })
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
			b.begin.Do(func() { go b.run() }) // once it has all rules
		}
	}
	e.applied.Store(s.Revision())
}

// newBus makes what works for a bus, behind the end of what worked for it before.
func (e *Engine) newBus(ctx context.Context, config *registry.Bus, after <-chan struct{}) *bus {
	log := e.log.With(zap.String("bus", config.Name))
	b := &bus{
		engine: e, name: config.Name, log: log, metrics: e.metrics.of(config.Name), rules: newRules(), after: after,
		lines: log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
			return zapcore.NewSamplerWithOptions(c, time.Second, 5, 1000)
		})),
		lanes: make(map[string]*lane), owned: make(map[int]*partition), done: make(chan struct{}),
	}
	b.newest.Store(config)
	b.running, b.halt = context.WithCancel(ctx)
	b.life, b.endLanes = context.WithCancel(context.WithoutCancel(ctx))
	return b
}
