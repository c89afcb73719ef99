package processor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// record is what the registry keeps of a subscriber's latest job: what all instances know of it, and what one has to know to take it over.
type record struct {
	Job

	// Run tells the process that has the job from all others, also of its name. It has it since Taken.
	Run   string    `json:"run,omitempty"`
	Taken time.Time `json:"taken,omitzero"`
	// Vain is how often it was taken over since it got on last.
	Vain int `json:"vain,omitempty"`
	// What it does: one of them, until it has ended.
	Redrive *RedriveOptions `json:"redrive,omitempty"`
	Discard *RedriveOptions `json:"discard,omitempty"`
	Replay  *replayPlan     `json:"replay,omitempty"`
}

// replayPlan is what a replay does, and how far it is.
type replayPlan struct {
	ReplayOptions

	// ToEnd says that all is wanted that the topic holds at To, the present then: the clocks of those that publish may go
	// ahead of this one's.
	ToEnd bool `json:"to_end,omitempty"`
	// Revision is that by which all engines are to match before it begins; 0: it does not matter.
	Revision int64 `json:"revision,omitempty"`
	// Reading says that it has begun to read. What came after To is others' then.
	Reading bool `json:"reading,omitempty"`
	// After is the last message of each partition up to which all is stored.
	After [][]byte `json:"after,omitempty"`
}

// recordOf reads a record, nil where there is none that can be read.
func recordOf(text json.RawMessage) *record {
	r := new(record)
	if len(text) == 0 || json.Unmarshal(text, r) != nil || r.ID == "" {
		return nil
	}
	return r
}

// open reports whether a record is of a job that has not ended.
func (r *record) open() bool { return r.State == JobRunning || r.State == JobInterrupted }

// ended reports whether a job has come to an end, by itself or by request.
func (r *record) ended() bool {
	return r.State == JobDone || r.State == JobFailed || r.State == JobCanceled
}

// planned reports whether it is known what the job does.
func (r *record) planned() bool { return r.Redrive != nil || r.Discard != nil || r.Replay != nil }

// unplan forgets what the job does.
func (r *record) unplan() { r.Redrive, r.Discard, r.Replay = nil, nil, nil }

// record is what is kept of a job as it is now. Of one that may be taken over the figures are those of where that begins.
func (j *job) record() record {
	now := j.now()
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.state
	if r.Replay == nil || !r.open() {
		r.Read, r.Chosen, r.Published, r.Discarded = now.Read, now.Chosen, now.Published, now.Discarded
	}
	if !r.open() {
		r.unplan()
	}
	return r
}

// settle notes that all of a replay is stored up to the messages of after.
func (j *job) settle(plan replayPlan) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state.Replay = &plan
	j.state.Read, j.state.Chosen, j.state.Published = j.read.Load(), j.chosen.Load(), j.published.Load()
}

// KeptJob is a job of which the registry keeps text, as it is by what is known of instances; nil without one. One whose process has gone is interrupted.
func KeptJob(text json.RawMessage, instances []registry.Instance) *Job {
	r := recordOf(text)
	if r == nil {
		return nil
	}
	if r.State == JobRunning && !r.lives(instances) {
		r.State = JobInterrupted
	}
	if r.State == JobInterrupted {
		r.Error = "the process that ran it has gone: another one takes it over"
		if !r.planned() {
			r.Error = "the process that ran it has gone: what it has published stays, and the rest comes by another job"
		}
	}
	return &r.Job
}

// startsApart is how far the clock of a process' start and that of its jobs may be apart: they are one process'.
const startsApart = time.Second

// lives reports whether the process of a job is there still.
func (r *record) lives(instances []registry.Instance) bool {
	taken := r.Taken
	if taken.IsZero() {
		taken = r.Began
	}
	return slices.ContainsFunc(instances, func(i registry.Instance) bool {
		return i.Name == r.Instance && !i.Started.After(taken.Add(startsApart))
	})
}

// orphaned reports whether nobody has a job that has not ended.
func (p *Processor) orphaned(uid string, r *record) bool {
	switch {
	case !r.open():
		return false
	case r.Run == p.jobs.run: // one that has ended here says so once the registry takes it, however long that is
		return !p.jobs.has(uid, r.ID)
	case r.State == JobInterrupted:
		return true
	case p.instances != nil && r.Run != "" && r.Instance == p.instance:
		return true // a former process of this name, which no two have at a time
	case p.instances == nil:
		return false
	}
	all := p.instances.Instances()
	// Before this one has heard of itself it has not heard of all others.
	return p.knows(all) && !r.lives(all)
}

// knows reports whether all instances are known.
func (p *Processor) knows(all []registry.Instance) bool {
	return slices.ContainsFunc(all, func(i registry.Instance) bool { return i.Name == p.instance })
}

const (
	// takeWithin bounds the taking of a job.
	takeWithin = 20 * time.Second
	// noteWithin bounds one try to keep how far a job is, noteEndWithin all of them at a stop.
	noteWithin    = 10 * time.Second
	noteEndWithin = 5 * time.Second
	// vainMost is how often a job is taken over that does not get on.
	vainMost = 10
)

// begin begins a job, unless the subscriber has one that has not ended, at any instance.
func (p *Processor) begin(ctx context.Context, s *registry.Subscriber, r record) (Job, error) {
	r.ID, r.Bus, r.Subscriber, r.Began = newJobID(), s.Bus, s.Name, time.Now()
	return p.take(ctx, s, false, func(was *record) (record, error) {
		if was != nil && was.open() && (was.planned() || !p.orphaned(s.UID, was)) && !p.endedHere(s.UID, was) {
			return r, fmt.Errorf("%w: %s, at the instance %s", ErrJobRunning, was.ID, was.Instance)
		}
		return r, nil
	})
}

// endedHere reports whether a job has ended in this process, which has not said so yet.
func (p *Processor) endedHere(uid string, r *record) bool {
	j := p.jobs.of(uid)
	return j != nil && j.now().ID == r.ID && r.Run == p.jobs.run && j.now().State != JobRunning && j.now().State != JobInterrupted
}

// take makes this process the one that runs a job, and runs it. decide says which, by what is kept: one at a time over all instances.
func (p *Processor) take(ctx context.Context, s *registry.Subscriber, resumed bool, decide func(was *record) (record, error)) (Job, error) {
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
		p.jobs.free(s.UID) // should it be kept nevertheless, it is found without anybody who has it
		if errors.Is(err, registry.ErrNotFound) {
			return Job{}, fmt.Errorf("%w: %w", ErrNoSubscriber, err)
		}
		return Job{}, err
	}
	j := newJob(r)
	j.resumed = resumed
	begun := j.now()
	if err := p.launchKept(s, j); err != nil { // it is kept, and another process takes it over
		j.finish(err, true)
		p.noteEnd(s, j)
	}
	return begun, nil
}

// errOtherRun: another process has the job, or somebody has ended it.
var errOtherRun = errors.New("the job is another process'")

// has reports, by an error, whether a job is another one's than was says.
func (j *job) has(was *record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case was != nil && was.ID == j.state.ID && was.Run == j.state.Run && was.State == JobCanceled && j.state.ended():
		return nil // what became of it is kept, with its last figures: it may have come to its end before it heard of that
	case was == nil || was.ID == j.state.ID && was.State == JobCanceled: // without a record: the subscriber was deleted
		j.canceled = true
		return errOtherRun
	case was.ID != j.state.ID || was.Run != j.state.Run:
		return errOtherRun
	}
	return nil
}

// note keeps how a job is now, as long as it is this process'.
func (p *Processor) note(ctx context.Context, s *registry.Subscriber, j *job) error {
	known := p.source.Job(s.Bus, s.Name)
	if text, err := json.Marshal(j.record()); err == nil && bytes.Equal(text, known) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, noteWithin)
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

// noteJob keeps how far a job is, until ctx ends, and ends the job when another process has it.
func (p *Processor) noteJob(ctx context.Context, s *registry.Subscriber, j *job) {
	about := j.now().ID
	for noted, seen := time.Now(), false; ; {
		sleep(ctx, min(p.jobs.noteEvery, time.Second))
		if ctx.Err() != nil {
			return
		}
		err, known := error(nil), recordOf(p.source.Job(s.Bus, s.Name))
		if seen = seen || known != nil && known.ID == about && known.Run == p.jobs.run; seen { // else this instance has not read yet what it has kept
			err = j.has(known)
		}
		if err == nil && time.Since(noted) >= p.jobs.noteEvery {
			err = p.note(ctx, s, j)
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
			p.log.Warn("cannot keep how far a job is, trying on", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		}
	}
}

// noteEnd keeps what became of a job. A process that stops has little time for it: then the job is taken over.
func (p *Processor) noteEnd(s *registry.Subscriber, j *job) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.jobs.ctx))
	defer cancel()
	defer context.AfterFunc(p.jobs.ctx, func() { time.AfterFunc(noteEndWithin, cancel) })()
	for {
		err := p.note(ctx, s, j)
		if errors.Is(err, errOtherRun) {
			j.mu.Lock()
			j.lost = true // what is kept is what others say of it
			j.mu.Unlock()
			return
		}
		if err == nil || errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrClosed) || ctx.Err() != nil {
			return
		}
		if other := p.jobs.of(s.UID); other != j { // there is another one
			return
		}
		p.log.Warn("cannot keep what became of a job, trying on", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		sleep(ctx, time.Second)
	}
}

// cancelKept ends a job that another process runs, or none does any more.
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

// adopt takes jobs over whose process has gone, until ctx ends.
func (p *Processor) adopt(ctx context.Context) {
	for {
		sleep(ctx, p.jobs.lookEvery)
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

// takeOver takes one job over, if still nobody has it.
func (p *Processor) takeOver(ctx context.Context, s *registry.Subscriber, id string) {
	log := p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.String("job", id))
	j, err := p.take(ctx, s, true, func(was *record) (record, error) {
		switch {
		case was == nil || was.ID != id || !was.planned() || p.jobs.run != was.Run && !p.orphaned(s.UID, was):
			return record{}, errOtherRun
		case was.Vain >= vainMost:
			was.unplan() // what it says to whoever runs it
			was.Error = fmt.Sprintf("it was taken over %d times and did not get on", was.Vain)
		}
		was.Vain++
		return *was, nil
	})
	switch {
	case errors.Is(err, errOtherRun), errors.Is(err, ErrJobRunning), ctx.Err() != nil:
	case err != nil:
		log.Warn("cannot take a job over, trying on", zap.Error(err))
	default:
		log.Info("a job goes on whose process has gone", zap.String("kind", j.Kind), zap.Int64("published", j.Published))
	}
}

// ids are the messages behind which a replay goes on.
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
