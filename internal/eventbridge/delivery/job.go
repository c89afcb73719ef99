package delivery

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/truncate"
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
	// ErrNoJob: the subscriber has no job, or none that can be canceled.
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
	// JobInterrupted: the process that ran the job stopped before its end. Another process takes it
	// over.
	JobInterrupted = "interrupted"
)

// Job is a redrive, a replay, or the discarding of dead letters, as it is at present.
type Job struct {
	ID         string    `json:"id"`
	Kind       string    `json:"kind"`
	Bus        string    `json:"bus"`
	Subscriber string    `json:"subscriber"` // empty: a job of the bus
	State      string    `json:"state"`
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended,omitzero"`
	// Instance is the instance that runs the job, or ran it.
	Instance string `json:"instance,omitempty"`
	Counts
	DryRun bool   `json:"dry_run,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Counts are the events or dead letters of a job. Unless the job is a dry run, Chosen is the sum of
// Published, Discarded and Left.
type Counts struct {
	// Read counts what the job has looked at, and Chosen what of that its options do not exclude.
	// What cannot be read is never excluded.
	Read   int64 `json:"read"`
	Chosen int64 `json:"chosen"`
	// Published counts what is stored for delivery, Discarded what is removed.
	Published int64 `json:"published"`
	Discarded int64 `json:"discarded,omitempty"`
	// Left counts what the job could not publish or discard. Its dead letters stay in their topic.
	Left Left `json:"left,omitzero"`
}

// Left are counts by reason.
type Left struct {
	// TooLarge: brokers refuse the copy for its size. A dry run does not know this.
	TooLarge int64 `json:"too_large,omitempty"`
	// Foreign: it is no dead letter that Eventbridge has written, or no event.
	Foreign int64 `json:"foreign,omitempty"`
	// Encrypted: Eventbridge has no key for the message.
	Encrypted int64 `json:"encrypted,omitempty"`
	// Truncated: the dead letter has only the beginning of the event.
	Truncated int64 `json:"truncated,omitempty"`
}

func (l Left) total() int64 { return l.TooLarge + l.Foreign + l.Encrypted + l.Truncated }

// job is a job that this process runs, or has run.
type job struct {
	cancel context.CancelFunc

	mu       sync.Mutex
	counts   Counts // up to now; the registry stores those of state
	state    record
	resumed  bool // another process has begun it, or an earlier run of this process
	canceled bool // somebody has canceled it
	lost     bool // another process has it
}

func newJob(r record) *job {
	return &job{state: r, counts: r.Counts}
}

// count changes the counts of a job.
func (j *job) count(change func(c *Counts)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.counts)
}

func (j *job) now() Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.state.Job
	s.Counts = j.counts
	return s
}

// end cancels the job.
func (j *job) end() {
	j.mu.Lock()
	j.canceled = true
	j.mu.Unlock()
	j.cancel()
}

// finish sets the job's final state. stopped says that the process stops.
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
		j.state.State, j.state.Error = JobFailed, truncate.Text(err.Error(), jobErrorBytes)
	}
}

// jobErrorBytes bounds the stored error of a job.
const jobErrorBytes = 1 << 10

// jobs holds, for each subscriber and each bus, the latest job that this process has run.
type jobs struct {
	run       string        // identifies this process
	saveEvery time.Duration // how often the progress of a job is stored
	lookEvery time.Duration // how often jobs of stopped processes are looked for

	mu      sync.Mutex
	ctx     context.Context // ends with the processor; nil: Run was not called
	by      map[string]*job // by UID of the subscriber, or by busJob
	taking  map[string]bool // keys as of by: a job is about to begin
	running sync.WaitGroup
}

// The defaults of jobs.
const (
	saveEvery = 10 * time.Second
	lookEvery = 5 * time.Second
)

func (js *jobs) begin(ctx context.Context) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.ctx = ctx
}

func (js *jobs) wait() {
	js.mu.Lock()
	running := &js.running // launch holds mu: no job begins after this
	js.mu.Unlock()
	running.Wait()
}

// reserve makes the caller the only one in this process that may begin a job of that subscriber,
// until free.
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

// has reports whether this process runs or has run the job with that ID, or is about to begin a job
// of the subscriber.
func (js *jobs) has(uid, id string) bool {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.taking[uid] {
		return true
	}
	j := js.by[uid]
	return j != nil && j.now().ID == id
}

// forget cancels the jobs of deleted subscribers. No other process can do so, and their topics
// could not be removed while the jobs run.
func (js *jobs) forget(snapshot func() *store.Snapshot) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.by) == 0 {
		return
	}
	known := make(map[string]bool)
	now := snapshot() // not older than the snapshots by which jobs have begun
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

// of returns the latest job with that key.
func (js *jobs) of(uid string) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.by[uid]
}

// newJobID returns a unique ID.
func newJobID() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// launch runs a job of this process, and calls ended when the job has ended. key is the job's key,
// see holder.
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

// launchKept runs a job that belongs to this process by its record in the registry.
func (p *Processor) launchKept(s *model.Subscriber, j *job) error {
	work := func(ctx context.Context) error {
		saving, endSaving := context.WithCancel(ctx)
		var saves sync.WaitGroup
		saves.Go(func() { p.saveWhileItRuns(saving, s, j) })
		defer saves.Wait()
		defer endSaving()
		return p.work(ctx, s, j)
	}
	return p.launch(s.UID, j, work, func() {
		p.saveEnd(s, j)
		p.jobs.drop(s.UID, j)
	})
}

// guarded calls f, and turns a panic into an error.
func (p *Processor) guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("a job panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("the job panicked: %v", v)
		}
	}()
	return f()
}

// drop forgets a job that another process has now.
func (js *jobs) drop(uid string, j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lost && js.by[uid] == j {
		delete(js.by, uid)
	}
}

// work does what the job's record says.
func (p *Processor) work(ctx context.Context, s *model.Subscriber, j *job) error {
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
		return errors.New("the record of the job does not say what to do")
	}
}

// Job returns the latest job of a subscriber that this process has run. Without a subscriber it
// returns the job of the bus. If there is none, the error is ErrNoJob.
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

// CancelJob cancels the job of a subscriber, in whichever process it runs: another process ends it
// some seconds later. Without a subscriber it cancels the job of the bus in this process. What the
// job has published stays.
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
		// The cancellation is stored at once: another process may have the job by now, or take it
		// over before this process has stored how the job ended.
		if _, err := p.cancelKept(ctx, bus, subscriber, key); err != nil && !errors.Is(err, ErrNoJob) {
			return Job{}, fmt.Errorf("the job has ended here, but this could not be stored, and another instance may take it over: cancel it again: %w", err)
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

// close closes what a job has opened, within a bounded time: a topic of replays that takes no
// messages must not hold up a canceled job.
func (p *Processor) close(ctx context.Context, what interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.StopTimeout)
	defer cancel()
	_ = what.Close(ctx) // what is not stored was not counted
}

// keep creates a topic of a subscriber if there is none, and the subscription that keeps its
// messages.
func (p *Processor) keep(ctx context.Context, topic string) error {
	if p.admin {
		if err := p.client.Topic(topic).Create(ctx, 0); err != nil {
			return err
		}
	}
	return p.client.EnsureSubscription(ctx, topic, model.DeliverSubscription, messaging.StartEarliest)
}
