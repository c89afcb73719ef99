package delivery

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

const (
	saveEvery = 10 * time.Second
	// saveWithin bounds the time of one change of a job in the registry, saveEndWithin the time in
	// which the outcome of a job is stored when the process stops.
	saveWithin    = 10 * time.Second
	saveEndWithin = 5 * time.Second
)

// work does what a job has to do, until its context ends.
type work func(ctx context.Context, j *job) error

// holder returns the subscriber of a job, and its topic of dead letters. Without a name these are
// of the bus: a subscriber with no more than the name of the bus and a UID.
func (p *Processor) holder(bus, name string) (s *model.Subscriber, deadLetters string, err error) {
	if name == "" {
		if p.source.Snapshot().Bus(bus) == nil {
			return nil, "", fmt.Errorf("there is no bus %s: %w", bus, ErrNoSubscriber)
		}
		return &model.Subscriber{Bus: bus, UID: "bus/" + bus}, p.topics.BusDeadLetter(bus), nil
	}
	s, err = p.subscriber(bus, name)
	if err != nil {
		return nil, "", err
	}
	return s, p.topics.DeadLetter(s), nil
}

// begin begins a job of a subscriber, unless it has one at any instance that runs. The registry
// stores the job: all instances show it, and this one runs it. The job of a bus is known to this
// process alone.
func (p *Processor) begin(ctx context.Context, s *model.Subscriber, of Job, options any, do work) (Job, error) {
	var err error
	if of.Options, err = json.Marshal(options); err != nil {
		return Job{}, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	publishes := of.Kind != KindDiscard && !of.DryRun
	of.Bus, of.Subscriber, of.Replays = s.Bus, s.Name, publishes || p.hasReplays(s)
	j, runs, err := p.addJob(s.UID, of)
	if err != nil {
		return Job{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	if publishes { // all instances consume the topic once they see the job
		err = p.keep(ctx, p.topics.Replay(s))
	}
	if err == nil && s.Name != "" {
		err = p.store(ctx, s, j)
	}
	if err != nil {
		p.removeJob(s.UID, j)
		if errors.Is(err, model.ErrNotFound) {
			err = fmt.Errorf("%w: %w", ErrNoSubscriber, err)
		}
		return Job{}, err
	}
	began := j.now()
	go p.run(runs, s, j, do)
	return began, nil
}

// addJob makes a job the latest of its subscriber, unless this process runs one. runs ends when
// Run is to return. The caller must call removeJob or run.
func (p *Processor) addJob(uid string, of Job) (j *job, runs context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.ctx.Err() != nil {
		return nil, nil, errors.New("the processor does not run")
	}
	if was := p.jobs[uid]; was != nil && was.now().State == JobRunning {
		return nil, nil, fmt.Errorf("%w: %s", ErrJobRunning, was.now().ID)
	}
	of.ID, of.State, of.Instance, of.Began = rand.Text(), JobRunning, p.instance, time.Now().Round(0)
	if of.Began.Before(p.started) { // the clock was set back: the job would be one of an earlier process
		of.Began = p.started
	}
	j = &job{job: of}
	j.ctx, j.cancel = context.WithCancelCause(p.ctx)
	p.jobs[uid] = j
	p.running.Add(1)
	return j, p.ctx, nil
}

// removeJob removes a job that could not be stored, and does not run.
func (p *Processor) removeJob(uid string, j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.cancel(nil)
	delete(p.jobs, uid)
	p.running.Done()
}

// cancelOrphanedJobs cancels the jobs of deleted subscribers and buses. No other process can do so,
// and their topics could not be removed while the jobs run. The caller holds p.mu.
func (p *Processor) cancelOrphanedJobs() {
	for uid, j := range p.jobs {
		of := j.now()
		if s, _, err := p.holder(of.Bus, of.Subscriber); err != nil || s.UID != uid {
			j.cancel(errCanceled)
			delete(p.jobs, uid)
		}
	}
}

// store stores a new job, unless the subscriber's present one runs at another instance. This process
// may not have read that job yet.
func (p *Processor) store(ctx context.Context, s *model.Subscriber, j *job) error {
	return p.source.ChangeJob(ctx, s.Bus, s.Name, s.UID, func(text json.RawMessage) (json.RawMessage, error) {
		switch was := decodeJob(text); {
		case was == nil:
		case p.runsElsewhere(was):
			return nil, fmt.Errorf("%w: %s, at the instance %s", ErrJobRunning, was.ID, was.Instance)
		case was.Replays:
			j.change(func(now *Job) { now.Replays = true })
		}
		return json.Marshal(j.now())
	})
}

// run does a job, and stores its progress and its outcome, the outcome within saveEndWithin after
// the end of runs. It ends the job if it was canceled at another instance, or if the subscriber has
// another job.
func (p *Processor) run(runs context.Context, s *model.Subscriber, j *job, do work) {
	defer p.running.Done()
	id := j.now().ID
	log := p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.String("job", id))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer j.cancel(nil)
		j.finish(guard(log, "the job", func() error { return do(j.ctx, j) }))
		if end := j.now(); end.State == JobInterrupted {
			log.Warn("a job was interrupted: begin another job to do the rest", zap.String("kind", end.Kind), zap.Int64("published", end.Published))
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(runs))
	defer cancel()
	defer context.AfterFunc(runs, func() { time.AfterFunc(saveEndWithin, cancel) })()
	tick := time.NewTicker(min(p.saveEvery, time.Second))
	defer tick.Stop()
	for saved, over := time.Now(), false; ; {
		select {
		case <-ended:
			over, ended = true, nil
		case <-tick.C:
		}
		if stored := decodeJob(p.source.Job(s.Bus, s.Name)); stored != nil && stored.ID == id && stored.Canceling {
			j.cancel(errCanceled)
		}
		if !over && time.Since(saved) < p.saveEvery {
			continue
		}
		err := p.save(ctx, s, j)
		saved = time.Now()
		switch {
		case errors.Is(err, errReplaced):
			j.cancel(err)
		case err != nil && !errors.Is(err, model.ErrNotFound) && !errors.Is(err, model.ErrClosed) && ctx.Err() == nil:
			log.Warn("cannot store a job, will keep trying", zap.Error(err))
			continue
		}
		if over {
			return
		}
	}
}

// save stores the present state of a subscriber's job, unless the subscriber has another one by now.
func (p *Processor) save(ctx context.Context, s *model.Subscriber, j *job) error {
	if s.Name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	return p.source.ChangeJob(ctx, s.Bus, s.Name, s.UID, func(text json.RawMessage) (json.RawMessage, error) {
		now, was := j.now(), decodeJob(text)
		if was == nil || was.ID != now.ID {
			return nil, errReplaced
		}
		now.Canceling = was.Canceling && now.State == JobRunning
		return json.Marshal(now)
	})
}

// hasReplays reports whether the subscriber's topic of replays may have messages.
func (p *Processor) hasReplays(s *model.Subscriber) bool {
	j := decodeJob(p.source.Job(s.Bus, s.Name))
	return j != nil && j.Replays
}

// runsElsewhere reports whether another instance runs a job. A job of this instance that does not
// run here is of an earlier process.
func (p *Processor) runsElsewhere(j *Job) bool {
	if j.State != JobRunning || j.Instance == p.instance {
		return false
	}
	all := p.instances.Instances()
	return !p.complete(all) || j.lives(all)
}

// complete reports whether the list of instances is complete: this instance is in it.
func (p *Processor) complete(all []instances.Instance) bool {
	return slices.ContainsFunc(all, func(i instances.Instance) bool { return i.Name == p.instance })
}

// interruptedJobs counts the subscribers whose latest job was interrupted.
func (p *Processor) interruptedJobs() (n int) {
	all := p.instances.Instances()
	if !p.complete(all) {
		return 0
	}
	snapshot := p.source.Snapshot()
	for b := range snapshot.Buses() {
		for s := range snapshot.Subscribers(b.Name) {
			if j := StoredJob(p.source.Job(s.Bus, s.Name), all); j != nil && j.State == JobInterrupted {
				n++
			}
		}
	}
	return n
}

// Job returns the latest job of a subscriber that this process has run. Without a subscriber it
// returns the job of the bus. If there is none, the error is ErrNoJob.
func (p *Processor) Job(bus, subscriber string) (Job, error) {
	j, _, err := p.findJob(bus, subscriber)
	switch {
	case err != nil:
		return Job{}, err
	case j == nil:
		return Job{}, ErrNoJob
	}
	return j.now(), nil
}

// findJob returns the latest job that this process has run, nil if there is none, and its UID.
func (p *Processor) findJob(bus, subscriber string) (j *job, uid string, err error) {
	s, _, err := p.holder(bus, subscriber)
	if err != nil {
		return nil, "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[s.UID], s.UID, nil
}

// CancelJob cancels the latest job of a subscriber and returns it. If another instance runs the
// job, that one ends it some seconds later. Without a subscriber it cancels the job of the bus in
// this process. Published copies stay.
func (p *Processor) CancelJob(ctx context.Context, bus, subscriber string) (Job, error) {
	own, uid, err := p.findJob(bus, subscriber)
	switch {
	case err != nil:
		return Job{}, err
	case own != nil && (subscriber == "" || own.now().State == JobRunning):
		own.cancel(errCanceled)
		return own.now(), nil
	case subscriber == "":
		return Job{}, ErrNoJob
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	var j *Job
	err = p.source.ChangeJob(ctx, bus, subscriber, uid, func(text json.RawMessage) (json.RawMessage, error) {
		switch j = decodeJob(text); {
		case j == nil:
			return nil, ErrNoJob
		case p.runsElsewhere(j):
			j.Canceling = true
		case j.State == JobRunning, j.State == JobInterrupted:
			j.State, j.Ended, j.Error = JobCanceled, time.Now(), ""
		default:
			return nil, ErrNoJob
		}
		return json.Marshal(j)
	})
	switch {
	case err == nil:
		return *j, nil
	case errors.Is(err, ErrNoJob) && own != nil:
		return own.now(), nil
	default:
		return Job{}, err
	}
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
	if err := p.client.Topic(topic).Create(ctx, 0); err != nil && !errors.Is(err, messaging.ErrNoAdminURL) {
		return err
	}
	return p.client.EnsureSubscription(ctx, topic, model.DeliverSubscription, messaging.StartEarliest)
}
