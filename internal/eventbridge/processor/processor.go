package processor

import (
	"context"
	"fmt"
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
	SetState(ctx context.Context, bus, name string, state registry.State, reason string) (*registry.Subscriber, error)
}

// Targets makes targets. A target.Factory does.
type Targets interface {
	New(s *registry.Subscriber) (target.Target, error)
}

// Processor delivers to all active subscribers. Processors of several processes share their events, as the order of
// each subscriber allows. All methods are safe for concurrent use.
type Processor struct {
	client  *messaging.Client
	source  Source
	topics  registry.Topics
	targets Targets
	cfg     Config
	admin   bool
	log     *zap.Logger
	metrics *Metrics
	starts  *rate.Limiter
	part    atomic.Int64 // of the bytes that are received ahead, for one subscriber
	jobs    jobs

	mu      sync.Mutex
	workers map[string]*worker   // by UID
	logs    map[string]*attempts // the same, over all revisions
	ending  sync.WaitGroup       // workers that are to stop
}

// Options are what a processor works with. All must be set, but for Admin.
type Options struct {
	Client  *messaging.Client
	Source  Source
	Topics  registry.Topics
	Targets Targets
	// Admin says that the client has the address of the brokers' admin API: backlogs are asked for.
	Admin   bool
	Config  Config
	Log     *zap.Logger
	Metrics *Metrics
}

// New makes a processor. The configuration must be valid.
func New(o Options) *Processor {
	p := &Processor{
		client: o.Client, source: o.Source, topics: o.Topics, targets: o.Targets,
		cfg: o.Config, admin: o.Admin, log: o.Log.Named("processor"), metrics: o.Metrics,
		starts:  rate.NewLimiter(rate.Limit(o.Config.StartRate), max(int(o.Config.StartRate/10), 1)),
		workers: make(map[string]*worker), logs: make(map[string]*attempts),
	}
	p.part.Store(o.Config.part(1))
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
// subscriber begins behind the end of the one before.
func (p *Processor) apply(ctx context.Context, s *registry.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted, names := make(map[string]*registry.Subscriber), make(map[string]bool)
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			names[sub.UID] = true
			if sub.State == registry.Active {
				wanted[sub.UID] = sub
			}
		}
	}
	p.part.Store(p.cfg.part(len(wanted)))
	for uid := range p.logs {
		if !names[uid] {
			delete(p.logs, uid)
		}
	}
	after := make(map[string]*worker)
	for uid, w := range p.workers {
		now := wanted[uid]
		if now != nil && now.Revision == w.sub.Revision {
			continue
		}
		after[uid] = w
		p.end(uid, w)
		if !names[uid] {
			p.ending.Go(func() {
				<-w.done
				p.metrics.forget(w.sub.Bus, w.sub.Name)
			})
		}
	}
	if ctx.Err() != nil {
		return
	}
	for uid, sub := range wanted {
		if p.workers[uid] != nil {
			continue
		}
		w := p.newWorker(ctx, sub)
		p.workers[uid] = w
		go func() {
			if before := after[uid]; before != nil {
				<-before.done
			}
			w.run()
		}()
	}
}

// end has a worker stop. p.mu is held.
func (p *Processor) end(uid string, w *worker) {
	delete(p.workers, uid)
	w.stop()
	p.ending.Go(func() { <-w.done })
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
	Trouble  string    `json:"trouble,omitempty"`
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
	s.Delivering, s.UnderWay = true, w.underWay.Load()
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

// subscriber returns a subscriber and its bus as they are now.
func (p *Processor) subscriber(bus, name string) (*registry.Bus, *registry.Subscriber, error) {
	s := p.source.Snapshot()
	b, sub := s.Bus(bus), s.Subscriber(bus, name)
	if b == nil || sub == nil {
		return nil, nil, fmt.Errorf("bus %s has no subscriber %s: %w", bus, name, ErrNoSubscriber)
	}
	return b, sub, nil
}
