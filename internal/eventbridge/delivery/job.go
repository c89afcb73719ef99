package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Errors of jobs.
var (
	// ErrNoSubscriber: the subscriber does not exist.
	ErrNoSubscriber = errors.New("subscriber not found")
	// ErrJobRunning: the subscriber, or the bus, has a job that has not ended.
	ErrJobRunning = errors.New("a job is already running")
	// ErrOptions: the options of a job are not valid.
	ErrOptions = errors.New("invalid job options")
	// ErrNoJob: the subscriber has no job, or none that can be canceled.
	ErrNoJob = errors.New("job not found")
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
	// JobInterrupted: the process that ran the job stopped before its end. No
	// process continues it: another job can do the rest.
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
	// Instance is the instance that runs the job, or ran it. No other instance continues it.
	Instance string `json:"instance,omitempty"`
	// Options are those of the request that began the job.
	Options json.RawMessage `json:"options,omitempty"`
	// Canceling says that the job was canceled at another instance, and has not ended yet.
	Canceling bool `json:"canceling,omitempty"`
	Counts
	DryRun bool `json:"dry_run,omitempty"`
	// Replays says that this job or an earlier one may have published to the topic of replays. All
	// instances consume it then.
	Replays bool   `json:"replays,omitempty"`
	Error   string `json:"error,omitempty"`
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

// interruptedText is the error of an interrupted job.
const interruptedText = "its process stopped before the end: what is published stays published, begin another job for the rest"

// StoredJob decodes a job that the registry stores; nil if there is none. A running job is
// interrupted if its process is not among instances any more.
func StoredJob(text json.RawMessage, known []instances.Instance) *Job {
	j := decodeJob(text)
	if j == nil {
		return nil
	}
	if j.State == JobRunning && !j.lives(known) {
		j.State = JobInterrupted
	}
	if j.State == JobInterrupted {
		j.Error = interruptedText
	}
	return j
}

func decodeJob(text json.RawMessage) *Job {
	j := new(Job)
	if len(text) == 0 || json.Unmarshal(text, j) != nil || j.ID == "" {
		return nil
	}
	return j
}

// lives reports whether the process that began the job still runs. A later process may have its
// name.
func (j *Job) lives(known []instances.Instance) bool {
	return slices.ContainsFunc(known, func(i instances.Instance) bool {
		return i.Name == j.Instance && !i.Started.After(j.Began)
	})
}

// job is a job that this process runs, or has run.
type job struct {
	ctx    context.Context // ends with the processor, or when the job is canceled
	cancel context.CancelCauseFunc

	mu  sync.Mutex
	job Job
}

// Why a job's context ends before the processor's.
var (
	errCanceled = errors.New("the job was canceled")
	// errReplaced: the subscriber has another job, because this process was believed to have
	// stopped, or the subscriber was deleted.
	errReplaced = errors.New("the subscriber has another job")
)

func (j *job) now() Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.job
}

func (j *job) change(change func(*Job)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.job)
}

// finish sets the final state of a job that ended with err.
func (j *job) finish(err error) {
	j.change(func(now *Job) {
		now.Ended = time.Now()
		switch {
		case err == nil:
			now.State = JobDone
		case errors.Is(context.Cause(j.ctx), errCanceled):
			now.State = JobCanceled
		case j.ctx.Err() != nil:
			now.State, now.Error = JobInterrupted, interruptedText
		default:
			now.State, now.Error = JobFailed, truncate.Text(err.Error(), jobErrorBytes)
		}
	})
}

// jobErrorBytes bounds the stored error of a job.
const jobErrorBytes = 1 << 10
