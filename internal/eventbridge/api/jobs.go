package api

import (
	"net/http"

	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

func (a *API) redrive(w http.ResponseWriter, r *http.Request) {
	var o processor.RedriveOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *registry.Subscriber) (processor.Job, error) {
		return a.Processor.Redrive(r.Context(), s.Bus, s.Name, o)
	})
}

func (a *API) replay(w http.ResponseWriter, r *http.Request) {
	var o processor.ReplayOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *registry.Subscriber) (processor.Job, error) {
		return a.Processor.Replay(r.Context(), s.Bus, s.Name, o)
	})
}

// begin begins a job, once options has read what is wanted.
func (a *API) begin(w http.ResponseWriter, r *http.Request, options func() error, begin func(*registry.Subscriber) (processor.Job, error)) {
	s, err := a.holder(r)
	if err == nil {
		err = options()
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
	a.ofBus(w, r, func(s *registry.Subscriber) (processor.Job, error) {
		return a.Processor.CancelJob(r.Context(), s.Bus, s.Name)
	})
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

// cancelJob ends the job, whichever process runs it.
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) {
	s, err := a.delivering(r)
	var j processor.Job
	if err == nil {
		j, err = a.Processor.CancelJob(r.Context(), s.Bus, s.Name)
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

// keptJob is the latest that any process has kept, nil without one.
func (a *API) keptJob(s *registry.Subscriber) *processor.Job {
	if a.Jobs == nil {
		return nil
	}
	return processor.KeptJob(a.Jobs.Job(s.Bus, s.Name), a.Instances.Instances())
}
