package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source has the subscribers, and stores their states and jobs. A store.Store is one.
type Source interface {
	Snapshot() *store.Snapshot
	// Watch calls f for the current snapshot and after each change, from one goroutine, until stop
	// is called.
	Watch(f func(*store.Snapshot)) (stop func())
	ChangeState(ctx context.Context, bus, name string, state model.State, reason string, c store.Condition) (*model.Subscriber, error)
	// Job returns the stored state of a subscriber's latest job, nil if there is none. ChangeJob
	// changes it, one change at a time over all instances.
	Job(bus, subscriber string) json.RawMessage
	ChangeJob(ctx context.Context, bus, name, uid string, change func(was json.RawMessage) (json.RawMessage, error)) error
}

// Instances knows all instances. An instances.Status is one.
type Instances interface {
	Instances() []instances.Instance
	// Active reports whether all engines match by this revision of the registry or a later one, and
	// which engines do not.
	Active(revision int64) (active bool, behind []string)
}

// Targets makes targets. A target.Factory does.
type Targets interface {
	New(s *model.Subscriber) (target.Target, error)
}

// Processor delivers to all active subscribers. Processors of several processes share the events of
// each subscriber, as its order allows. All methods are safe for concurrent use.
type Processor struct {
	client    *messaging.Client
	source    Source
	topics    model.Topics
	targets   Targets
	cfg       Config
	log       *zap.Logger
	metrics   *metrics
	starts    *rate.Limiter
	started   time.Time // by the wall clock
	instance  string
	instances Instances
	part      atomic.Int64 // bytes that may be received ahead for one subscriber
	saveEvery time.Duration

	mu          sync.Mutex
	ctx         context.Context             // of Run; nil: it does not run
	subscribers map[string]*subscriberState // by UID
	jobs        map[string]*job             // the latest of each subscriber and bus, by UID, see holder
	running     sync.WaitGroup              // workers, jobs and other goroutines of Run
}

// subscriberState is what this process has for one subscriber, over all its revisions.
type subscriberState struct {
	log    attempts
	worker *worker // the latest, which may have stopped; nil: there was none
}

// active returns the worker that delivers, nil if there is none.
func (s *subscriberState) active() *worker {
	if s.worker == nil || s.worker.ctx.Err() != nil {
		return nil
	}
	return s.worker
}

// Options are what a processor needs. All must be set.
type Options struct {
	Client  *messaging.Client
	Source  Source
	Topics  model.Topics
	Targets Targets
	// Instance is the name of this instance among Instances.
	Instance  string
	Instances Instances
	Config    Config
	Log       *zap.Logger
	// Metrics registers the processor's metrics.
	Metrics prometheus.Registerer
}

// New makes a processor. The configuration must be valid.
func New(o Options) *Processor {
	p := &Processor{
		client: o.Client, source: o.Source, topics: o.Topics, targets: o.Targets, cfg: o.Config,
		log: o.Log.Named("processor"), starts: rate.NewLimiter(startRate, startRate/10), started: time.Now().Round(0),
		instance: o.Instance, instances: o.Instances, saveEvery: saveEvery,
		subscribers: make(map[string]*subscriberState), jobs: make(map[string]*job),
	}
	p.part.Store(o.Config.part(1))
	p.metrics = newMetrics(o.Metrics, p)
	return p
}

// Run delivers until ctx ends, lets deliveries in flight finish, and returns. It may be called
// once. Failures of the network, of Pulsar and of targets are not errors of Run.
func (p *Processor) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	stop := p.source.Watch(func(*store.Snapshot) { p.apply(ctx) })
	<-ctx.Done()
	stop()
	p.mu.Lock()
	p.ctx = nil // no job begins after this
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// apply starts and stops workers as the snapshot says. Workers that have to stop do so at the same
// time. The worker of a changed subscriber begins when the one before has ended. A change of rules
// only concerns the engine: deliveries continue.
func (p *Processor) apply(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	s := p.source.Snapshot() // not older than the snapshots by which jobs have begun
	known, active := make(map[string]*model.Subscriber), 0
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			known[sub.UID] = sub
			if sub.State == model.Active {
				active++
			}
		}
	}
	p.part.Store(p.cfg.part(active))
	for uid, state := range p.subscribers {
		if w := state.active(); w != nil && !w.follow(known[uid]) {
			w.stop()
		}
		if known[uid] == nil {
			delete(p.subscribers, uid)
			p.forget(state.worker)
		}
	}
	p.cancelOrphanedJobs()
	for uid, sub := range known {
		state := p.subscribers[uid]
		if state == nil {
			state = &subscriberState{}
			p.subscribers[uid] = state
		}
		if sub.State != model.Active || state.active() != nil {
			continue
		}
		before, w := state.worker, p.newWorker(ctx, sub, &state.log)
		state.worker = w
		p.running.Go(func() {
			if before != nil {
				<-before.done
			}
			w.run()
		})
	}
}

// forget removes the metrics of a deleted subscriber when its worker has ended, unless there is
// another subscriber of its name.
func (p *Processor) forget(w *worker) {
	if w == nil {
		return
	}
	p.running.Go(func() {
		<-w.done
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.source.Snapshot().Subscriber(w.sub.Bus, w.sub.Name) == nil {
			p.metrics.forget(w.sub.Bus, w.sub.Name)
		}
	})
}

// deliversAs reports whether a worker of old delivers as a worker of now would.
func deliversAs(now, old *model.Subscriber) bool {
	if now.Revision == old.Revision {
		return true
	}
	a, b := *now, *old
	for _, s := range []*model.Subscriber{&a, &b} {
		s.Revision, s.Changed, s.Description, s.Reason, s.Rules = 0, time.Time{}, "", "", nil
	}
	return reflect.DeepEqual(a, b)
}

// unhealthy returns how many subscribers cannot be consumed or delivered to at present.
func (p *Processor) unhealthy() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, state := range p.subscribers {
		if w := state.active(); w != nil && w.Unhealthy() != nil {
			n++
		}
	}
	return n
}

// find returns a subscriber's worker, nil if there is none, and its delivery log, nil if this
// process does not know the subscriber.
func (p *Processor) find(bus, subscriber string) (*worker, *attempts) {
	s, err := p.subscriber(bus, subscriber)
	if err != nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.subscribers[s.UID]
	if state == nil {
		return nil, nil
	}
	return state.active(), &state.log
}

// Status is what this process does for one subscriber.
type Status struct {
	Bus        string `json:"bus"`
	Subscriber string `json:"subscriber"`
	// Delivering says that this process has a worker for the subscriber: the subscriber is active.
	Delivering bool         `json:"delivering"`
	Breaker    BreakerState `json:"breaker,omitempty"`
	// ProbeAt is when an open breaker lets the next delivery through.
	ProbeAt  time.Time `json:"probe_at,omitzero"`
	InFlight int64     `json:"in_flight"`
	// StandsBy says that other instances deliver all events. With the order total one instance
	// delivers at a time, with group at most one for each partition of the bus.
	StandsBy  bool   `json:"stands_by,omitempty"`
	Unhealthy string `json:"unhealthy,omitempty"`
}

// Status returns what this process does for a subscriber.
func (p *Processor) Status(bus, subscriber string) Status {
	s := Status{Bus: bus, Subscriber: subscriber}
	w, _ := p.find(bus, subscriber)
	if w == nil {
		return s
	}
	s.Delivering, s.InFlight, s.StandsBy = true, w.inFlight.Load(), w.standsBy()
	s.Breaker, s.ProbeAt = w.breaker.now()
	if err := w.Unhealthy(); err != nil {
		s.Unhealthy = err.Error()
	}
	return s
}

// Attempts returns the latest attempts that this process has made for a subscriber, newest first.
func (p *Processor) Attempts(bus, subscriber string) []Attempt {
	_, log := p.find(bus, subscriber)
	if log == nil {
		return nil
	}
	return log.all()
}

// subscriber returns a subscriber of the current snapshot.
func (p *Processor) subscriber(bus, name string) (*model.Subscriber, error) {
	s := p.source.Snapshot()
	sub := s.Subscriber(bus, name)
	if s.Bus(bus) == nil || sub == nil {
		return nil, fmt.Errorf("bus %s has no subscriber %s: %w", bus, name, ErrNoSubscriber)
	}
	return sub, nil
}
