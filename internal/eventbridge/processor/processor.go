package processor

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

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source tells the processor of subscribers, and takes their states. A registry.Store is one.
type Source interface {
	Snapshot() *registry.Snapshot
	// Watch calls f for the present snapshot and after each change, from one goroutine, until stop.
	Watch(f func(*registry.Snapshot)) (stop func())
	ChangeState(ctx context.Context, bus, name string, state registry.State, reason string, c registry.Condition) (*registry.Subscriber, error)
	// Job is what is kept of a subscriber's latest job, nil for nothing. ChangeJob changes it, one change at a time over all instances.
	Job(bus, subscriber string) json.RawMessage
	ChangeJob(ctx context.Context, bus, name, uid string, change func(was json.RawMessage) (json.RawMessage, error)) error
}

// Instances tells of all instances. A registry.Status does.
type Instances interface {
	Instances() []registry.Instance
	// Active reports whether all engines match by a revision of the registry or a later one, and which do not.
	Active(revision int64) (active bool, behind []string)
}

// Targets makes targets. A target.Factory does.
type Targets interface {
	New(s *registry.Subscriber) (target.Target, error)
}

// Processor delivers to all active subscribers. Processors of several processes share their events, as the order of
// each subscriber allows. All methods are safe for concurrent use.
type Processor struct {
	client    *messaging.Client
	source    Source
	topics    registry.Topics
	targets   Targets
	cfg       Config
	admin     bool
	log       *zap.Logger
	metrics   *Metrics
	starts    *rate.Limiter
	instance  string
	instances Instances    // nil: nothing is known of others
	part      atomic.Int64 // of the bytes that are received ahead, for one subscriber
	jobs      jobs

	mu       sync.Mutex
	workers  map[string]*worker   // by UID
	stopping map[string]*worker   // the last one of each that is to stop, until it has
	logs     map[string]*attempts // by UID, over all revisions
	names    map[name]bool        // of all subscribers
	shown    map[name]bool        // of those that have metrics
	ending   sync.WaitGroup       // workers that are to stop
}

// name is what metrics call a subscriber.
type name struct{ bus, subscriber string }

// Options are what a processor works with. All must be set, but for Admin and Instances.
type Options struct {
	Client  *messaging.Client
	Source  Source
	Topics  registry.Topics
	Targets Targets
	// Instance is this one's name among Instances. Without Instances jobs of processes that have gone are not taken over.
	Instance  string
	Instances Instances
	// Admin says that the client has the address of the brokers' admin API: backlogs are asked for.
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
		starts:  rate.NewLimiter(rate.Limit(o.Config.StartRate), max(int(o.Config.StartRate/10), 1)),
		workers: make(map[string]*worker), logs: make(map[string]*attempts),
	}
	p.instance, p.instances = o.Instance, o.Instances
	p.jobs = jobs{
		run: newJobID(), noteEvery: noteEvery, lookEvery: lookEvery, by: make(map[string]*job), taking: make(map[string]bool),
	}
	p.part.Store(o.Config.part(1))
	o.Metrics.countTroubled(p.troubled)
	return p
}

// Run delivers until ctx ends, then lets deliveries under way finish, and returns. It may be called once. What the
// network, Pulsar and targets do is no error.
func (p *Processor) Run(ctx context.Context) error {
	p.jobs.begin(ctx)
	stop := p.source.Watch(func(s *registry.Snapshot) { p.apply(ctx, s) })
	if p.admin {
		p.watchBacklogs(ctx)
	}
	p.ending.Go(func() { p.adopt(ctx) })
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

// apply makes the workers follow a snapshot: those that are to stop stop side by side, and the worker of a changed
// subscriber begins behind the end of the one before. A change of rules is the engine's alone: deliveries go on.
func (p *Processor) apply(ctx context.Context, s *registry.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted, known := make(map[string]*registry.Subscriber), make(map[string]bool)
	clear(p.names)
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			known[sub.UID] = true
			p.names[name{sub.Bus, sub.Name}] = true
			if sub.State == registry.Active {
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

// deliversAs reports whether a worker of old delivers as one of now would.
func deliversAs(now, old *registry.Subscriber) bool {
	if now.Revision == old.Revision {
		return true
	}
	a, b := *now, *old
	for _, s := range []*registry.Subscriber{&a, &b} {
		s.Revision, s.Changed, s.Description, s.Reason, s.Rules = 0, time.Time{}, "", "", nil
	}
	return reflect.DeepEqual(a, b)
}

// end has a worker stop. p.mu is held.
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

// forgetNames removes the metrics of subscribers that are no more, once nothing works for them. p.mu is held.
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

// troubled is how many subscribers cannot be consumed or delivered to at present.
func (p *Processor) troubled() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		if w.Trouble() != nil {
			n++
		}
	}
	return n
}

// attemptsOf returns the log of a subscriber. p.mu is held.
func (p *Processor) attemptsOf(s *registry.Subscriber) *attempts {
	a := p.logs[s.UID]
	if a == nil {
		a = &attempts{most: p.cfg.LogAttempts}
		p.logs[s.UID] = a
	}
	return a
}

// replaying has the topic of replays consumed.
func (p *Processor) replaying(s *registry.Subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[s.UID]; w != nil {
		w.replay()
	}
}

// Status is what this process does for one subscriber.
type Status struct {
	Bus        string `json:"bus"`
	Subscriber string `json:"subscriber"`
	// Delivering says that there is a worker: the subscriber is active.
	Delivering bool         `json:"delivering"`
	Breaker    BreakerState `json:"breaker,omitempty"`
	// ProbeAt is when an open breaker lets the next delivery through.
	ProbeAt  time.Time `json:"probe_at,omitzero"`
	UnderWay int64     `json:"under_way"`
	// StandsBy says that other instances deliver all: the orders total, exclusive and live have one at a time, and group has no more than the bus has partitions.
	StandsBy bool   `json:"stands_by,omitempty"`
	Trouble  string `json:"trouble,omitempty"`
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
	s.Delivering, s.UnderWay, s.StandsBy = true, w.underWay.Load(), w.standsBy()
	s.Breaker, s.ProbeAt = w.breaker.now()
	if err := w.Trouble(); err != nil {
		s.Trouble = err.Error()
	}
	return s
}

// Attempts returns the latest attempts that this process has made for a subscriber, the latest first.
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

// subscriber returns a subscriber as it is now.
func (p *Processor) subscriber(bus, name string) (*registry.Subscriber, error) {
	s := p.source.Snapshot()
	sub := s.Subscriber(bus, name)
	if s.Bus(bus) == nil || sub == nil {
		return nil, fmt.Errorf("bus %s has no subscriber %s: %w", bus, name, ErrNoSubscriber)
	}
	return sub, nil
}
