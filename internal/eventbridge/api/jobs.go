package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// Job is a job and the process that runs it, or did.
type Job struct {
	processor.Job

	Instance string `json:"instance,omitempty"`
}

// jobInterrupted is the state of a job whose process has gone before its end.
const jobInterrupted = "interrupted"

func (a *API) redrive(w http.ResponseWriter, r *http.Request) {
	var o processor.RedriveOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *registry.Subscriber) (processor.Job, error) { return a.Processor.Redrive(s.Bus, s.Name, o) })
}

func (a *API) replay(w http.ResponseWriter, r *http.Request) {
	var o processor.ReplayOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *registry.Subscriber) (processor.Job, error) { return a.Processor.Replay(s.Bus, s.Name, o) })
}

// begin begins a job, once options has read what is wanted.
func (a *API) begin(w http.ResponseWriter, r *http.Request, options func() error, begin func(*registry.Subscriber) (processor.Job, error)) {
	s, err := a.holder(r)
	if err == nil {
		err = options()
	}
	if err == nil {
		if other := a.keptJob(s); a.runsElsewhere(s, other) {
			err = fmt.Errorf("%w: %s, at the instance %s", processor.ErrJobRunning, other.ID, other.Instance)
		}
	}
	var j processor.Job
	if err == nil {
		j, err = begin(s)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	at := "/v1/buses/" + s.Bus
	if s.Name != "" {
		at += "/subscribers/" + s.Name
	}
	w.Header().Set("Location", at+"/job")
	write(w, http.StatusAccepted, j)
}

// busJob answers with the latest job of a bus in this process.
func (a *API) busJob(w http.ResponseWriter, r *http.Request) {
	a.ofBus(w, r, func(s *registry.Subscriber) (processor.Job, error) { return a.ownJob(s) })
}

func (a *API) cancelBusJob(w http.ResponseWriter, r *http.Request) {
	a.ofBus(w, r, func(s *registry.Subscriber) (processor.Job, error) { return a.Processor.CancelJob(s.Bus, s.Name) })
}

func (a *API) ofBus(w http.ResponseWriter, r *http.Request, f func(*registry.Subscriber) (processor.Job, error)) {
	s, err := a.holder(r)
	var j processor.Job
	if err == nil {
		j, err = f(s)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, j)
}

// job answers with the latest job of a subscriber, whichever process runs it or did.
func (a *API) job(w http.ResponseWriter, r *http.Request) {
	s, err := a.subscriber(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	kept := a.keptJob(s)
	own, err := a.ownJob(s)
	switch {
	case kept == nil && err != nil:
		a.refuse(w, r, err)
	case kept != nil && (err != nil || kept.ID != own.ID && kept.Began.After(own.Began)):
		write(w, http.StatusOK, kept)
	default:
		write(w, http.StatusOK, own)
	}
}

// cancelJob ends the job, if this process runs it.
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) {
	s, err := a.subscriber(r)
	if err == nil {
		if other := a.keptJob(s); a.runsElsewhere(s, other) {
			err = refused(http.StatusConflict, "the job runs at the instance "+other.Instance+": ask that one to end it")
		}
	}
	var j processor.Job
	if err == nil {
		if _, err = a.ownJob(s); err == nil {
			j, err = a.Processor.CancelJob(s.Bus, s.Name)
		}
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, j)
}

// ownJob is that of this process.
func (a *API) ownJob(s *registry.Subscriber) (processor.Job, error) {
	if a.Processor == nil {
		return processor.Job{}, processor.ErrNoJob
	}
	return a.Processor.Job(s.Bus, s.Name)
}

// isOwn reports whether a job is this process'.
func (a *API) isOwn(s *registry.Subscriber, j *Job) bool {
	own, err := a.ownJob(s)
	return err == nil && own.ID == j.ID
}

// runsElsewhere reports whether another process runs a job. One of this process that is not its latest has ended: that is kept a moment later.
func (a *API) runsElsewhere(s *registry.Subscriber, j *Job) bool {
	return j != nil && j.State == processor.JobRunning && !a.isOwn(s, j) && j.Instance != a.Instance
}

// keptJob is the latest that any process has kept, nil without one.
func (a *API) keptJob(s *registry.Subscriber) *Job {
	if a.Jobs == nil {
		return nil
	}
	text := a.Jobs.Job(s.Bus, s.Name)
	j := new(Job)
	if text == nil || json.Unmarshal(text, j) != nil {
		return nil
	}
	if j.State == processor.JobRunning && !a.isOwn(s, j) && !a.runs(j) {
		j.State = jobInterrupted
		j.Error = "the process that ran it has gone: what it has published stays, and the rest comes by another job"
	}
	return j
}

// startsApart is how far the clock of a process' start and that of its jobs may be apart: they are one process'.
const startsApart = time.Second

// runs reports whether the process of a job is there still.
func (a *API) runs(j *Job) bool {
	for _, i := range a.Instances.Instances() {
		if i.Name == j.Instance && !i.Started.After(j.Began.Add(startsApart)) {
			return true
		}
	}
	return false
}
