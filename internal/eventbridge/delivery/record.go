package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// record is what the registry stores about a subscriber's latest job. All instances know the job by
// it, and another instance can take the job over.
type record struct {
	Job

	// Run identifies the process that has the job; earlier processes may have had the same name.
	// The process has the job since Taken.
	Run   string    `json:"run,omitempty"`
	Taken time.Time `json:"taken,omitzero"`
	// Vain counts how often the job was taken over since it last made progress.
	Vain int `json:"vain,omitempty"`
	// These say what the job does. One of them is set until the job has ended.
	Redrive *RedriveOptions `json:"redrive,omitempty"`
	Discard *RedriveOptions `json:"discard,omitempty"`
	Replay  *replayPlan     `json:"replay,omitempty"`
}

// replayPlan is what a replay does, and how far it has come.
type replayPlan struct {
	ReplayOptions

	// ToEnd says that To was the present, and that the replay includes everything that the topic
	// held then. To cannot bound that: clocks of publishers may be ahead of this process' clock.
	ToEnd bool `json:"to_end,omitempty"`
	// Revision is the revision by which all engines must match before the replay begins; 0: any.
	Revision int64 `json:"revision,omitempty"`
	// Reading says that the replay has begun to read. Events after To are left to the engines then.
	Reading bool `json:"reading,omitempty"`
	// After holds, for each partition, the last message up to which everything is stored.
	After [][]byte `json:"after,omitempty"`
}

// recordOf decodes a record. It returns nil if there is none, or none that can be read.
func recordOf(text json.RawMessage) *record {
	r := new(record)
	if len(text) == 0 || json.Unmarshal(text, r) != nil || r.ID == "" {
		return nil
	}
	return r
}

// open reports whether the job has not ended.
func (r *record) open() bool { return r.State == JobRunning || r.State == JobInterrupted }

// ended reports whether the job has ended, by itself or by request.
func (r *record) ended() bool {
	return r.State == JobDone || r.State == JobFailed || r.State == JobCanceled
}

// planned reports whether the record says what the job does.
func (r *record) planned() bool { return r.Redrive != nil || r.Discard != nil || r.Replay != nil }

// unplan removes from the record what the job does.
func (r *record) unplan() { r.Redrive, r.Discard, r.Replay = nil, nil, nil }

// record returns what the registry should store about the job now. For a replay that may be taken
// over, the counts are those at the messages after which it would continue.
func (j *job) record() record {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.state
	if r.Replay == nil || !r.open() {
		r.Counts = j.counts
	}
	if !r.open() {
		r.unplan()
	}
	return r
}

// checkpoint records that everything of a replay is stored up to the messages in plan.After.
func (j *job) checkpoint(plan replayPlan) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Replay, j.state.Counts = &plan, j.counts
}

// KeptJob returns the job in text, which the registry stores; nil if there is none. The job is
// interrupted if its process is not among instances any more.
func KeptJob(text json.RawMessage, instances []instances.Instance) *Job {
	r := recordOf(text)
	if r == nil {
		return nil
	}
	if r.State == JobRunning && !r.lives(instances) {
		r.State = JobInterrupted
	}
	if r.State == JobInterrupted {
		r.Error = "the process that ran it has stopped: another one takes it over"
		if !r.planned() {
			r.Error = "the process that ran it has stopped: what it has published stays published, and another job is needed for the rest"
		}
	}
	return &r.Job
}

// startsApart is the tolerance between the start time of a process and the time at which it took a
// job: the two may come from different clocks.
const startsApart = time.Second

// lives reports whether the process that has the job still runs.
func (r *record) lives(known []instances.Instance) bool {
	taken := r.Taken
	if taken.IsZero() {
		taken = r.Began
	}
	return slices.ContainsFunc(known, func(i instances.Instance) bool {
		return i.Name == r.Instance && !i.Started.After(taken.Add(startsApart))
	})
}

// orphaned reports whether the job has not ended and no process runs it.
func (p *Processor) orphaned(uid string, r *record) bool {
	switch {
	case !r.open():
		return false
	case r.Run == p.jobs.run: // a job that has ended here is stored as ended once the registry accepts that, however long it takes
		return !p.jobs.has(uid, r.ID)
	case r.State == JobInterrupted:
		return true
	case p.instances != nil && r.Run != "" && r.Instance == p.instance:
		return true // an earlier process of this name: no two processes have one name at the same time
	case p.instances == nil:
		return false
	}
	all := p.instances.Instances()
	// The list may be incomplete until this instance is in it.
	return p.knows(all) && !r.lives(all)
}

// knows reports whether the list of instances is complete: this instance is in it.
func (p *Processor) knows(all []instances.Instance) bool {
	return slices.ContainsFunc(all, func(i instances.Instance) bool { return i.Name == p.instance })
}

const (
	// takeWithin bounds the time to take or to cancel a job in the registry.
	takeWithin = 20 * time.Second
	// saveWithin bounds one attempt to store a job's progress, saveEndWithin all attempts when the
	// process stops.
	saveWithin    = 10 * time.Second
	saveEndWithin = 5 * time.Second
	// vainMost is how often a job without progress is taken over.
	vainMost = 10
)

// begin begins a job, unless the subscriber has a job at any instance that has not ended.
func (p *Processor) begin(ctx context.Context, s *model.Subscriber, r record) (Job, error) {
	r.ID, r.Bus, r.Subscriber, r.Began = newJobID(), s.Bus, s.Name, time.Now()
	return p.take(ctx, s, false, func(was *record) (record, error) {
		if was != nil && was.open() && (was.planned() || !p.orphaned(s.UID, was)) && !p.endedHere(s.UID, was) {
			return r, fmt.Errorf("%w: %s, at the instance %s", ErrJobRunning, was.ID, was.Instance)
		}
		return r, nil
	})
}

// endedHere reports whether a job has ended in this process, and the registry does not say so yet.
func (p *Processor) endedHere(uid string, r *record) bool {
	j := p.jobs.of(uid)
	return j != nil && j.now().ID == r.ID && r.Run == p.jobs.run && j.now().State != JobRunning && j.now().State != JobInterrupted
}

// take makes this process the one that runs a job, and starts the job. decide gets the stored
// record, and returns the job to run. One decide runs at a time over all instances.
func (p *Processor) take(ctx context.Context, s *model.Subscriber, resumed bool, decide func(was *record) (record, error)) (Job, error) {
	if err := p.jobs.reserve(s.UID); err != nil {
		return Job{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, takeWithin)
	defer cancel()
	var r record
	err := p.source.ChangeJob(ctx, s.Bus, s.Name, s.UID, func(was json.RawMessage) (_ json.RawMessage, err error) {
		if r, err = decide(recordOf(was)); err != nil {
			return nil, err
		}
		r.Instance, r.Run, r.Taken, r.State = p.instance, p.jobs.run, time.Now(), JobRunning
		return json.Marshal(r)
	})
	if err != nil {
		p.jobs.free(s.UID) // if the registry stored the job nevertheless, it is orphaned
		if errors.Is(err, model.ErrNotFound) {
			return Job{}, fmt.Errorf("%w: %w", ErrNoSubscriber, err)
		}
		return Job{}, err
	}
	j := newJob(r)
	j.resumed = resumed
	begun := j.now()
	if err := p.launchKept(s, j); err != nil { // the registry has the job: another process takes it over
		j.finish(err, true)
		p.saveEnd(s, j)
	}
	return begun, nil
}

// errOtherRun: another process has the job, or somebody has canceled it.
var errOtherRun = errors.New("another process runs the job")

// has returns an error if, according to the stored record was, the job is not this process' any
// more.
func (j *job) has(was *record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case was != nil && was.ID == j.state.ID && was.Run == j.state.Run && was.State == JobCanceled && j.state.ended():
		return nil // the job ended before it saw the cancellation: its outcome is stored with its final counts
	case was == nil || was.ID == j.state.ID && was.State == JobCanceled: // no record: the subscriber was deleted
		j.canceled = true
		return errOtherRun
	case was.ID != j.state.ID || was.Run != j.state.Run:
		return errOtherRun
	}
	return nil
}

// saveJob stores the present state of a job, as long as the job belongs to this process.
func (p *Processor) saveJob(ctx context.Context, s *model.Subscriber, j *job) error {
	known := p.source.Job(s.Bus, s.Name)
	if text, err := json.Marshal(j.record()); err == nil && bytes.Equal(text, known) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	gotOn := false
	err := p.source.ChangeJob(ctx, s.Bus, s.Name, s.UID, func(text json.RawMessage) (json.RawMessage, error) {
		r, was := j.record(), recordOf(text)
		if err := j.has(was); err != nil {
			return nil, err
		}
		if gotOn = r.Read > was.Read || r.Published > was.Published || r.Discarded > was.Discarded; gotOn {
			r.Vain = 0
		}
		return json.Marshal(r)
	})
	if err == nil && gotOn {
		j.mu.Lock()
		j.state.Vain = 0
		j.mu.Unlock()
	}
	return err
}

// saveWhileItRuns stores a job's progress until ctx ends. It ends the job when another process has it.
func (p *Processor) saveWhileItRuns(ctx context.Context, s *model.Subscriber, j *job) {
	id := j.now().ID
	for noted, seen := time.Now(), false; ; {
		backoff.Sleep(ctx, min(p.jobs.saveEvery, time.Second))
		if ctx.Err() != nil {
			return
		}
		err, known := error(nil), recordOf(p.source.Job(s.Bus, s.Name))
		if seen = seen || known != nil && known.ID == id && known.Run == p.jobs.run; seen { // otherwise this instance has not yet read what it stored
			err = j.has(known)
		}
		if err == nil && time.Since(noted) >= p.jobs.saveEvery {
			err = p.saveJob(ctx, s, j)
			noted = time.Now()
		}
		switch {
		case errors.Is(err, errOtherRun):
			j.mu.Lock()
			j.lost = !j.canceled
			j.mu.Unlock()
			j.cancel()
			return
		case err != nil && ctx.Err() == nil:
			p.log.Warn("cannot store the progress of a job, will keep trying", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		}
	}
}

// saveEnd stores the outcome of a job. A process that stops has little time for it. If the time is
// over, another process takes the job over.
func (p *Processor) saveEnd(s *model.Subscriber, j *job) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.jobs.ctx))
	defer cancel()
	defer context.AfterFunc(p.jobs.ctx, func() { time.AfterFunc(saveEndWithin, cancel) })()
	for {
		err := p.saveJob(ctx, s, j)
		if errors.Is(err, errOtherRun) {
			j.mu.Lock()
			j.lost = true // the stored record counts from now on
			j.mu.Unlock()
			return
		}
		if err == nil || errors.Is(err, model.ErrNotFound) || errors.Is(err, model.ErrClosed) || ctx.Err() != nil {
			return
		}
		if other := p.jobs.of(s.UID); other != j { // a new job has begun
			return
		}
		p.log.Warn("cannot store the outcome of a job, will keep trying", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		backoff.Sleep(ctx, time.Second)
	}
}

// cancelKept cancels a job that another process runs, or that no process runs any more.
func (p *Processor) cancelKept(ctx context.Context, bus, subscriber, uid string) (canceled Job, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeWithin)
	defer cancel()
	err = p.source.ChangeJob(ctx, bus, subscriber, uid, func(text json.RawMessage) (json.RawMessage, error) {
		r := recordOf(text)
		if r == nil || !r.open() {
			return nil, ErrNoJob
		}
		r.State, r.Ended = JobCanceled, time.Now()
		r.unplan()
		canceled = r.Job
		return json.Marshal(r)
	})
	return canceled, err
}

// adopt takes over the jobs of stopped processes, until ctx ends.
func (p *Processor) adopt(ctx context.Context) {
	for {
		backoff.Sleep(ctx, p.jobs.lookEvery)
		snapshot := p.source.Snapshot()
		for b := range snapshot.Buses() {
			for s := range snapshot.Subscribers(b.Name) {
				if ctx.Err() != nil {
					return
				}
				r := recordOf(p.source.Job(s.Bus, s.Name))
				if r != nil && r.planned() && p.orphaned(s.UID, r) {
					p.takeOver(ctx, s, r.ID)
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// takeOver takes over one job, if no process has taken it.
func (p *Processor) takeOver(ctx context.Context, s *model.Subscriber, id string) {
	log := p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.String("job", id))
	j, err := p.take(ctx, s, true, func(was *record) (record, error) {
		switch {
		case was == nil || was.ID != id || !was.planned() || p.jobs.run != was.Run && !p.orphaned(s.UID, was):
			return record{}, errOtherRun
		case was.Vain >= vainMost:
			was.unplan() // the process that runs it ends it with this error
			was.Error = fmt.Sprintf("it was taken over %d times and did not get on", was.Vain)
		}
		was.Vain++
		return *was, nil
	})
	switch {
	case errors.Is(err, errOtherRun), errors.Is(err, ErrJobRunning), ctx.Err() != nil:
	case err != nil:
		log.Warn("cannot take over a job, will keep trying", zap.Error(err))
	default:
		log.Info("took over the job of a process that has stopped", zap.String("kind", j.Kind), zap.Int64("published", j.Published))
	}
}

// ids returns the messages after which a replay continues.
func (r *replayPlan) ids() (ids []messaging.MessageID, err error) {
	for _, text := range r.After {
		id, err := messaging.ParseMessageID(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
