package processor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Errors of jobs.
var (
	// ErrNoSubscriber: there is no such subscriber.
	ErrNoSubscriber = errors.New("no such subscriber")
	// ErrJobRunning: the subscriber, or the bus, has a job that has not ended.
	ErrJobRunning = errors.New("there is a job that has not ended")
	// ErrOptions: the options of a job are not valid.
	ErrOptions = errors.New("the job cannot be done")
	// ErrNoJob: there is no job of that subscriber in this process.
	ErrNoJob = errors.New("no such job")
)

// The kinds and states of jobs.
const (
	KindRedrive = "redrive"
	KindReplay  = "replay"
	KindDiscard = "discard"

	JobRunning  = "running"
	JobDone     = "done"
	JobFailed   = "failed"
	JobCanceled = "canceled"
)

// Job is a redrive, a replay, or the discarding of dead letters, as it is at present. Jobs are this process' alone, and do not survive it.
type Job struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Bus        string    `json:"bus"`
	Subscriber string    `json:"subscriber"` // empty: it is the bus' own
	State      string    `json:"state"`
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended,omitzero"`
	// Read events, or dead letters, were looked at; Chosen of them are wanted, and Published are stored for delivery, or Discarded.
	Read      int64  `json:"read"`
	Chosen    int64  `json:"chosen"`
	Published int64  `json:"published"`
	Discarded int64  `json:"discarded,omitempty"`
	DryRun    bool   `json:"dry_run,omitempty"`
	Error     string `json:"error,omitempty"`
}

// job is one that runs, or has ended.
type job struct {
	cancel                             context.CancelFunc
	read, chosen, published, discarded atomic.Int64

	mu    sync.Mutex
	state Job
}

func (j *job) now() Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.state
	s.Read, s.Chosen, s.Published, s.Discarded = j.read.Load(), j.chosen.Load(), j.published.Load(), j.discarded.Load()
	return s
}

// jobs are the latest of each subscriber and each bus.
type jobs struct {
	mu      sync.Mutex
	ctx     context.Context // ends with the processor; nil: it does not run
	by      map[string]*job // by UID, and those of buses by busJob
	running sync.WaitGroup
}

func (js *jobs) begin(ctx context.Context) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.ctx, js.by = ctx, make(map[string]*job)
}

func (js *jobs) wait() { js.running.Wait() }

// start begins a job of the subscriber with that UID.
func (js *jobs) start(uid string, about Job, work func(context.Context, *job) error) (Job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.ctx == nil || js.ctx.Err() != nil {
		return Job{}, errors.New("the processor does not run")
	}
	if was := js.by[uid]; was != nil && was.now().State == JobRunning {
		return Job{}, fmt.Errorf("%w: %s", ErrJobRunning, was.now().ID)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	about.ID, about.State, about.Began = hex.EncodeToString(random[:]), JobRunning, time.Now()
	j := &job{state: about}
	var ctx context.Context
	ctx, j.cancel = context.WithCancel(js.ctx)
	js.by[uid] = j
	js.running.Go(func() {
		defer j.cancel()
		err := work(ctx, j)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.state.Ended, j.state.State = time.Now(), JobDone
		switch {
		case err != nil && ctx.Err() != nil:
			j.state.State = JobCanceled
		case err != nil:
			j.state.State, j.state.Error = JobFailed, err.Error()
		}
	})
	return j.now(), nil
}

// forget ends the jobs of subscribers that are no more: nobody else can, and their topics could not be removed.
func (js *jobs) forget(snapshot func() *registry.Snapshot) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.by) == 0 {
		return
	}
	known := make(map[string]bool)
	now := snapshot() // not older than those by which jobs have begun
	for b := range now.Buses() {
		known[busJob(b.Name)] = true
		for s := range now.Subscribers(b.Name) {
			known[s.UID] = true
		}
	}
	for uid, j := range js.by {
		if !known[uid] {
			j.cancel()
			delete(js.by, uid)
		}
	}
}

// of returns the latest job of a subscriber.
func (js *jobs) of(uid string) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.by[uid]
}

// Job returns the latest job of a subscriber, or, without one, of the bus. Without one the error is ErrNoJob.
func (p *Processor) Job(bus, subscriber string) (Job, error) {
	key, _, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	j := p.jobs.of(key)
	if j == nil {
		return Job{}, ErrNoJob
	}
	return j.now(), nil
}

// CancelJob ends the job of a subscriber. What it has published stays.
func (p *Processor) CancelJob(bus, subscriber string) (Job, error) {
	key, _, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	j := p.jobs.of(key)
	if j == nil {
		return Job{}, ErrNoJob
	}
	j.cancel()
	return j.now(), nil
}

// close closes what a job has opened. A topic of replays that takes nothing does not keep a job that was ended.
func (p *Processor) close(ctx context.Context, what interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.StopTimeout)
	defer cancel()
	_ = what.Close(ctx) // what is not stored was not counted
}

// keep makes a topic of a subscriber, where there is none, and the subscription that keeps what is published there.
func (p *Processor) keep(ctx context.Context, topic string) error {
	if p.admin {
		if err := p.client.Topic(topic).Create(ctx, 0); err != nil {
			return err
		}
	}
	return p.client.EnsureSubscription(ctx, topic, registry.DeliverSubscription, messaging.StartEarliest)
}
