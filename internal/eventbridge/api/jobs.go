package api

import (
	"net/http"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

func (a *API) redrive(w http.ResponseWriter, r *http.Request) {
	var o delivery.RedriveOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *model.Subscriber) (delivery.Job, error) {
		return a.Processor.Redrive(r.Context(), s.Bus, s.Name, o)
	})
}

func (a *API) replay(w http.ResponseWriter, r *http.Request) {
	var o delivery.ReplayOptions
	a.begin(w, r, func() error { return a.readOptions(w, r, &o) }, func(s *model.Subscriber) (delivery.Job, error) {
		return a.Processor.Replay(r.Context(), s.Bus, s.Name, o)
	})
}

// begin begins a job, after options has read its options.
func (a *API) begin(w http.ResponseWriter, r *http.Request, options func() error, begin func(*model.Subscriber) (delivery.Job, error)) {
	s, err := a.holder(r)
	if err == nil {
		err = refuseConditions(r)
	}
	if err == nil {
		err = options()
	}
	var j delivery.Job
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
	a.answerJob(w, r, http.StatusAccepted, j, err)
}

// answerJob answers with a job, or with an error.
func (a *API) answerJob(w http.ResponseWriter, r *http.Request, status int, j delivery.Job, err error) {
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, status, j)
}

// busJob answers with the latest job of a bus in this process.
func (a *API) busJob(w http.ResponseWriter, r *http.Request) {
	a.answerFound(w, r, a.ownJob)
}

// cancelJob cancels the job of a subscriber, in whichever process it runs, or that of a bus in this
// process.
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) {
	if err := refuseConditions(r); err != nil {
		a.refuse(w, r, err)
		return
	}
	a.answerFound(w, r, func(s *model.Subscriber) (delivery.Job, error) {
		return a.Processor.CancelJob(r.Context(), s.Bus, s.Name)
	})
}

// answerFound answers with what f returns for the subscriber or bus in the path.
func (a *API) answerFound(w http.ResponseWriter, r *http.Request, f func(*model.Subscriber) (delivery.Job, error)) {
	s, err := a.holder(r)
	var j delivery.Job
	if err == nil {
		j, err = f(s)
	}
	a.answerJob(w, r, http.StatusOK, j, err)
}

// job answers with the latest job of a subscriber, in whichever process it runs or has run.
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

// ownJob returns the job of this process.
func (a *API) ownJob(s *model.Subscriber) (delivery.Job, error) {
	if a.Processor == nil {
		return delivery.Job{}, delivery.ErrNoJob
	}
	return a.Processor.Job(s.Bus, s.Name)
}

// keptJob returns the latest job of all processes, nil if there is none.
func (a *API) keptJob(s *model.Subscriber) *delivery.Job {
	if a.Jobs == nil {
		return nil
	}
	return delivery.StoredJob(a.Jobs.Job(s.Bus, s.Name), a.Instances.Instances())
}
