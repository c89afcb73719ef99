package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

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
	admin     bool
	log       *zap.Logger
	metrics   *Metrics
	starts    *rate.Limiter
	instance  string
	instances Instances
	part      atomic.Int64 // bytes that may be received ahead for one subscriber
	jobs      jobs
	backlogs  chan struct{} // see backlogsAtOnce

	mu       sync.Mutex
	workers  map[string]*worker   // by UID
	stopping map[string]*worker   // by UID: the latest worker that is stopping
	logs     map[string]*attempts // by UID, over all revisions
	names    map[name]bool        // of all subscribers
	shown    map[name]bool        // of subscribers that have metrics
	ending   sync.WaitGroup       // workers that are stopping, and other goroutines of Run
}

// name is a subscriber's name in metrics.
type name struct{ bus, subscriber string }

// Options are what a processor needs. All must be set, except Admin.
type Options struct {
	Client  *messaging.Client
	Source  Source
	Topics  model.Topics
	Targets Targets
	// Instance is the name of this instance among Instances.
	Instance  string
	Instances Instances
	// Admin says that the client has the address of the brokers' admin API.
	Admin   bool
	Config  Config
	Log     *zap.Logger
	Metrics *Metrics
}

// New makes a processor. The configuration must be valid.
func New(o Options) *Processor {
	p := &Processor{
		stopping: make(map[string]*worker), names: make(map[name]bool), shown: make(map[name]bool),
		client: o.Client, source: o.Source, topics: o.Topics, targets: o.Targets,
		cfg: o.Config, admin: o.Admin, log: o.Log.Named("processor"), metrics: o.Metrics,
		starts:  rate.NewLimiter(startRate, startRate/10),
		workers: make(map[string]*worker), logs: make(map[string]*attempts),
	}
	p.instance, p.instances, p.backlogs = o.Instance, o.Instances, make(chan struct{}, backlogsAtOnce)
	p.jobs = jobs{saveEvery: saveEvery, by: make(map[string]*job)}
	p.part.Store(o.Config.part(1))
	o.Metrics.countWith(p)
	return p
}

// Run delivers until ctx ends, lets deliveries in flight finish, and returns. It may be called
// once. Failures of the network, of Pulsar and of targets are not errors of Run.
func (p *Processor) Run(ctx context.Context) error {
	p.jobs.begin(ctx)
	stop := p.source.Watch(func(s *store.Snapshot) { p.apply(ctx, s) })
	<-ctx.Done()
	stop()
	p.mu.Lock()
	for uid, w := range p.workers {
		p.end(uid, w)
	}
	p.mu.Unlock()
	p.ending.Wait()
	p.jobs.wait()
	return nil
}

// apply starts and stops workers as a snapshot says. Workers that have to stop do so at the same
// time. The worker of a changed subscriber begins when the one before has ended. A change of rules
// only concerns the engine: deliveries go on.
func (p *Processor) apply(ctx context.Context, s *store.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted, known := make(map[string]*model.Subscriber), make(map[string]bool)
	clear(p.names)
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			known[sub.UID] = true
			p.names[name{sub.Bus, sub.Name}] = true
			if sub.State == model.Active {
				wanted[sub.UID] = sub
			}
		}
	}
	p.part.Store(p.cfg.part(len(wanted)))
	for uid := range p.logs {
		if !known[uid] {
			delete(p.logs, uid)
		}
	}
	for uid, w := range p.workers {
		now := wanted[uid]
		if now != nil && deliversAs(now, w.sub) {
			w.revision.Store(now.Revision)
			if p.hasReplays(now) {
				w.replay()
			}
			continue
		}
		p.end(uid, w)
	}
	p.forgetNames()
	p.jobs.forget(p.source.Snapshot)
	if ctx.Err() != nil {
		return
	}
	for uid, sub := range wanted {
		if p.workers[uid] != nil {
			continue
		}
		w := p.newWorker(ctx, sub)
		p.workers[uid] = w
		p.shown[name{sub.Bus, sub.Name}] = true
		before := p.stopping[uid]
		go func() {
			if before != nil {
				<-before.done
			}
			w.run()
		}()
	}
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

// end makes a worker stop. The caller holds p.mu.
func (p *Processor) end(uid string, w *worker) {
	delete(p.workers, uid)
	p.stopping[uid] = w
	w.stop()
	p.ending.Go(func() {
		<-w.done
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stopping[uid] == w {
			delete(p.stopping, uid)
		}
		p.forgetNames()
	})
}

// forgetNames removes the metrics of deleted subscribers once their workers have ended. The caller
// holds p.mu.
func (p *Processor) forgetNames() {
	for n := range p.shown {
		if !p.names[n] && !p.stops(n) {
			delete(p.shown, n)
			p.metrics.forget(n.bus, n.subscriber)
		}
	}
}

func (p *Processor) stops(n name) bool {
	for _, w := range p.stopping {
		if n.bus == w.sub.Bus && n.subscriber == w.sub.Name {
			return true
		}
	}
	return false
}

// unhealthy returns how many subscribers cannot be consumed or delivered to at present.
func (p *Processor) unhealthy() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		if w.Unhealthy() != nil {
			n++
		}
	}
	return n
}

// attemptsOf returns the delivery log of a subscriber. The caller holds p.mu.
func (p *Processor) attemptsOf(s *model.Subscriber) *attempts {
	a := p.logs[s.UID]
	if a == nil {
		a = &attempts{}
		p.logs[s.UID] = a
	}
	return a
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
	sub := p.source.Snapshot().Subscriber(bus, subscriber)
	if sub == nil {
		return s
	}
	p.mu.Lock()
	w := p.workers[sub.UID]
	p.mu.Unlock()
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
	sub := p.source.Snapshot().Subscriber(bus, subscriber)
	if sub == nil {
		return nil
	}
	p.mu.Lock()
	a := p.logs[sub.UID]
	p.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.all()
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
