package processor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
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
	// ErrNoJob: the subscriber has had no job, or none that could be ended.
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
	// JobInterrupted: the process that ran it has gone before its end. Another one takes it over.
	JobInterrupted = "interrupted"
)

// Job is a redrive, a replay, or the discarding of dead letters, as it is at present.
type Job struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Bus        string    `json:"bus"`
	Subscriber string    `json:"subscriber"` // empty: it is the bus' own
	State      string    `json:"state"`
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended,omitzero"`
	// Instance is the one that runs it, or did.
	Instance string `json:"instance,omitempty"`
	// Read events, or dead letters, were looked at; Chosen of them are wanted, and Published are stored for delivery, or Discarded.
	Read      int64  `json:"read"`
	Chosen    int64  `json:"chosen"`
	Published int64  `json:"published"`
	Discarded int64  `json:"discarded,omitempty"`
	DryRun    bool   `json:"dry_run,omitempty"`
	Error     string `json:"error,omitempty"`
}

// job is one that this process runs, or did.
type job struct {
	cancel                             context.CancelFunc
	read, chosen, published, discarded atomic.Int64

	mu       sync.Mutex
	state    record
	resumed  bool // another process has begun it, or another life of this one
	canceled bool // somebody has ended it
	lost     bool // another process has it
}

func newJob(r record) *job {
	j := &job{state: r}
	j.read.Store(r.Read)
	j.chosen.Store(r.Chosen)
	j.published.Store(r.Published)
	j.discarded.Store(r.Discarded)
	return j
}

func (j *job) now() Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.state.Job
	s.Read, s.Chosen, s.Published, s.Discarded = j.read.Load(), j.chosen.Load(), j.published.Load(), j.discarded.Load()
	return s
}

// end says that somebody wants it to end.
func (j *job) end() {
	j.mu.Lock()
	j.canceled = true
	j.mu.Unlock()
	j.cancel()
}

// finish notes what came of it. stopped says that the process stops.
func (j *job) finish(err error, stopped bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Ended = time.Now()
	switch {
	case err == nil:
		j.state.State = JobDone
	case j.lost, stopped && !j.canceled:
		j.state.State, j.state.Ended = JobInterrupted, time.Time{}
	case j.canceled:
		j.state.State = JobCanceled
	default:
		j.state.State, j.state.Error = JobFailed, door.Cut(err.Error(), jobErrorBytes)
	}
}

// jobErrorBytes bounds what is kept of a job's error.
const jobErrorBytes = 1 << 10

// jobs are the latest of each subscriber, and each bus, that this process has run.
type jobs struct {
	run       string        // tells this process from all others
	noteEvery time.Duration // how often it is kept how far a job is
	lookEvery time.Duration // how often jobs are looked for whose process has gone

	mu      sync.Mutex
	ctx     context.Context // ends with the processor; nil: it does not run
	by      map[string]*job // by UID, and those of buses by busJob
	taking  map[string]bool // UIDs of subscribers whose job is about to begin
	running sync.WaitGroup
}

// The defaults of jobs.
const (
	noteEvery = 10 * time.Second
	lookEvery = 5 * time.Second
)

func (js *jobs) begin(ctx context.Context) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.ctx = ctx
}

func (js *jobs) wait() {
	js.mu.Lock()
	running := &js.running // whoever begins one has done so, or will not
	js.mu.Unlock()
	running.Wait()
}

// reserve makes the caller the only one who may begin a job of the subscriber with that UID here, until free.
func (js *jobs) reserve(uid string) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.ctx == nil || js.ctx.Err() != nil {
		return errors.New("the processor does not run")
	}
	if was := js.by[uid]; was != nil && was.now().State == JobRunning {
		return fmt.Errorf("%w: %s", ErrJobRunning, was.now().ID)
	}
	if js.taking[uid] {
		return fmt.Errorf("%w: it is just beginning", ErrJobRunning)
	}
	js.taking[uid] = true
	return nil
}

func (js *jobs) free(uid string) {
	js.mu.Lock()
	defer js.mu.Unlock()
	delete(js.taking, uid)
}

// has reports whether this process runs the job of that id, or did, or is about to begin one of the subscriber.
func (js *jobs) has(uid, id string) bool {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.taking[uid] {
		return true
	}
	j := js.by[uid]
	return j != nil && j.now().ID == id
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
			j.end()
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

// newJobID is a name that no other job has.
func newJobID() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// launch runs a job that is this process' alone, and ended when it has ended. key is what it is kept by.
func (p *Processor) launch(key string, j *job, work func(context.Context) error, ended func()) error {
	js := &p.jobs
	js.mu.Lock()
	defer js.mu.Unlock()
	delete(js.taking, key)
	if js.ctx.Err() != nil {
		return errors.New("the processor stops")
	}
	ctx, cancel := context.WithCancel(js.ctx)
	j.cancel = cancel
	js.by[key] = j
	js.running.Go(func() {
		defer cancel()
		err := p.guarded(func() error { return work(ctx) })
		j.finish(err, js.ctx.Err() != nil)
		ended()
	})
	return nil
}

// launchKept runs a job that the registry says is this process'.
func (p *Processor) launchKept(s *registry.Subscriber, j *job) error {
	work := func(ctx context.Context) error {
		noting, endNoting := context.WithCancel(ctx)
		var notes sync.WaitGroup
		notes.Go(func() { p.noteJob(noting, s, j) })
		defer notes.Wait()
		defer endNoting()
		return p.work(ctx, s, j)
	}
	return p.launch(s.UID, j, work, func() {
		p.noteEnd(s, j)
		p.jobs.drop(s.UID, j)
	})
}

// guarded calls f, whose panic is an error.
func (p *Processor) guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("a job panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("the job panicked: %v", v)
		}
	}()
	return f()
}

// drop forgets a job that is another process' now.
func (js *jobs) drop(uid string, j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lost && js.by[uid] == j {
		delete(js.by, uid)
	}
}

// work does what a job is to do.
func (p *Processor) work(ctx context.Context, s *registry.Subscriber, j *job) error {
	switch r := j.record(); {
	case r.Error != "":
		return errors.New(r.Error)
	case r.Redrive != nil:
		return p.redrive(ctx, j, s, *r.Redrive)
	case r.Discard != nil:
		return p.discard(ctx, j, p.topics.DeadLetter(s), *r.Discard)
	case r.Replay != nil:
		b := p.source.Snapshot().Bus(s.Bus)
		if b == nil {
			return fmt.Errorf("there is no bus %s any more", s.Bus)
		}
		return p.replay(ctx, j, b, s, *r.Replay)
	default:
		return errors.New("it is not known what the job is to do")
	}
}

// Job returns the latest job of a subscriber, or, without one, of the bus, that this process has run. Without one the error is ErrNoJob.
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

// CancelJob ends the job of a subscriber, whichever process runs it, or, without one, that of the bus in this process. What it has published stays. Another
// process ends it some seconds later.
func (p *Processor) CancelJob(ctx context.Context, bus, subscriber string) (Job, error) {
	key, _, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	own := p.jobs.of(key)
	if own != nil && own.now().State == JobRunning {
		own.end()
		if subscriber == "" {
			return own.now(), nil
		}
		// Kept at once: by now another process may have it, or it may be taken over before this one has said how it ended.
		if _, err := p.cancelKept(ctx, bus, subscriber, key); err != nil && !errors.Is(err, ErrNoJob) {
			return Job{}, fmt.Errorf("the job ends here, but that could not be kept, and another instance may take it over: end it again: %w", err)
		}
		return own.now(), nil
	}
	canceled, err := Job{}, ErrNoJob
	if subscriber != "" {
		canceled, err = p.cancelKept(ctx, bus, subscriber, key)
	}
	if errors.Is(err, ErrNoJob) && own != nil {
		return own.now(), nil
	}
	return canceled, err
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
