package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
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

// begin begins a job of a subscriber, unless it has one at any instance that runs. The registry
// stores the job: all instances show it, and this one runs it.
func (p *Processor) begin(ctx context.Context, s *model.Subscriber, of Job, options any, do work) (Job, error) {
	var err error
	if of.Options, err = json.Marshal(options); err != nil {
		return Job{}, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	of.Bus, of.Subscriber, of.Instance = s.Bus, s.Name, p.instance
	publishes := of.Kind != KindDiscard && !of.DryRun
	of.Replays = publishes || p.hasReplays(s)
	j, err := p.jobs.add(s.UID, of)
	if err != nil {
		return Job{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	if publishes { // all instances consume the topic once they see the job
		err = p.keep(ctx, p.topics.Replay(s))
	}
	if err == nil {
		err = p.store(ctx, s, j)
	}
	if err != nil {
		p.jobs.remove(s.UID, j)
		if errors.Is(err, model.ErrNotFound) {
			err = fmt.Errorf("%w: %w", ErrNoSubscriber, err)
		}
		return Job{}, err
	}
	began := j.now()
	go p.runStored(s, j, do)
	return began, nil
}

// store stores a new job, unless the subscriber's present one runs at another instance. What this
// process has read of the registry may be older than that one.
func (p *Processor) store(ctx context.Context, s *model.Subscriber, j *job) error {
	return p.source.ChangeJob(ctx, s.Bus, s.Name, s.UID, func(text json.RawMessage) (json.RawMessage, error) {
		switch was := decodeJob(text); {
		case was == nil:
		case p.runsElsewhere(was):
			return nil, fmt.Errorf("%w: %s, at the instance %s", ErrJobRunning, was.ID, was.Instance)
		case was.Replays:
			j.keepReplays()
		}
		return json.Marshal(j.now())
	})
}

// beginUnstored begins a job of a bus. It is known to this process alone.
func (p *Processor) beginUnstored(key string, of Job, do work) (Job, error) {
	of.Instance = p.instance
	j, err := p.jobs.add(key, of)
	if err != nil {
		return Job{}, err
	}
	began := j.now()
	go func() {
		defer p.jobs.running.Done()
		p.run(j, do)
	}()
	return began, nil
}

// run does a job. A panic is an error.
func (p *Processor) run(j *job, do work) {
	defer j.cancel(nil)
	j.finish(func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				p.log.Error("a job panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
				err = fmt.Errorf("the job panicked: %v", v)
			}
		}()
		return do(j.ctx, j)
	}())
}

// runStored does a job of a subscriber, and stores its progress and its outcome.
func (p *Processor) runStored(s *model.Subscriber, j *job, do work) {
	defer p.jobs.running.Done()
	var saves sync.WaitGroup
	saves.Go(func() { p.saveProgress(s, j) })
	p.run(j, do)
	saves.Wait()
	log := p.jobLog(s, j)
	if end := j.now(); end.State == JobInterrupted {
		log.Warn("a job was interrupted: begin another one for the rest", zap.String("kind", end.Kind), zap.Int64("published", end.Published))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.jobs.ctx))
	defer cancel()
	defer context.AfterFunc(p.jobs.ctx, func() { time.AfterFunc(saveEndWithin, cancel) })()
	for {
		err := p.save(ctx, s, j)
		if err == nil || errors.Is(err, errReplaced) || errors.Is(err, model.ErrNotFound) || errors.Is(err, model.ErrClosed) || ctx.Err() != nil {
			return
		}
		log.Warn("cannot store the outcome of a job, will keep trying", zap.Error(err))
		backoff.Sleep(ctx, time.Second)
	}
}

// saveProgress stores a job's progress until it ends. It ends the job if it was canceled at another
// instance, or if the subscriber has another job.
func (p *Processor) saveProgress(s *model.Subscriber, j *job) {
	id, saved := j.now().ID, time.Now()
	for {
		backoff.Sleep(j.ctx, min(p.jobs.saveEvery, time.Second))
		if j.ctx.Err() != nil {
			return
		}
		if stored := decodeJob(p.source.Job(s.Bus, s.Name)); stored != nil && stored.ID == id && stored.Canceling {
			j.cancel(errCanceled)
			return
		}
		if time.Since(saved) < p.jobs.saveEvery {
			continue
		}
		saved = time.Now()
		switch err := p.save(j.ctx, s, j); {
		case errors.Is(err, errReplaced):
			j.cancel(err)
			return
		case err != nil && j.ctx.Err() == nil:
			p.jobLog(s, j).Warn("cannot store the progress of a job, will keep trying", zap.Error(err))
		}
	}
}

// save stores the present state of a job, unless the subscriber has another one by now.
func (p *Processor) save(ctx context.Context, s *model.Subscriber, j *job) error {
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

func (p *Processor) jobLog(s *model.Subscriber, j *job) *zap.Logger {
	return p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.String("job", j.now().ID))
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

// CancelJob cancels the latest job of a subscriber and returns it. If another instance runs the
// job, that one ends it some seconds later. Without a subscriber it cancels the job of the bus in
// this process. What the job has published stays.
func (p *Processor) CancelJob(ctx context.Context, bus, subscriber string) (Job, error) {
	key, _, err := p.holder(bus, subscriber)
	if err != nil {
		return Job{}, err
	}
	own := p.jobs.of(key)
	switch {
	case own != nil && (subscriber == "" || own.now().State == JobRunning):
		own.cancel(errCanceled)
		return own.now(), nil
	case subscriber == "":
		return Job{}, ErrNoJob
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	var j *Job
	err = p.source.ChangeJob(ctx, bus, subscriber, key, func(text json.RawMessage) (json.RawMessage, error) {
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
	if p.admin {
		if err := p.client.Topic(topic).Create(ctx, 0); err != nil {
			return err
		}
	}
	return p.client.EnsureSubscription(ctx, topic, model.DeliverSubscription, messaging.StartEarliest)
}
