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
	if err == nil {
		at := "/v1/buses/" + s.Bus
		if s.Name != "" {
			at += "/subscribers/" + s.Name
		}
		w.Header().Set("Location", at+"/job")
	}
	a.tell(w, r, http.StatusAccepted, j, err)
}

// tell answers with a job, or refuses.
func (a *API) tell(w http.ResponseWriter, r *http.Request, status int, j processor.Job, err error) {
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, status, j)
}

// busJob answers with the latest job of a bus in this process.
func (a *API) busJob(w http.ResponseWriter, r *http.Request) {
	a.about(w, r, a.ownJob)
}

// cancelJob ends the job of a subscriber, whichever process runs it, or that of a bus in this process.
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) {
	a.about(w, r, func(s *registry.Subscriber) (processor.Job, error) {
		return a.Processor.CancelJob(r.Context(), s.Bus, s.Name)
	})
}

// about answers with what f says of the job of the path.
func (a *API) about(w http.ResponseWriter, r *http.Request, f func(*registry.Subscriber) (processor.Job, error)) {
	s, err := a.holder(r)
	var j processor.Job
	if err == nil {
		j, err = f(s)
	}
	a.tell(w, r, http.StatusOK, j, err)
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
