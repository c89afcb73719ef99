package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// statusAnswer is what is known of a subscriber's deliveries.
type statusAnswer struct {
	Subscriber string      `json:"subscriber"`
	State      model.State `json:"state"`
	Reason     string      `json:"reason,omitempty"`
	Revision   int64       `json:"revision"`
	// Active says whether all engines match by this revision, Behind which engines do not.
	Active bool     `json:"active"`
	Behind []string `json:"behind,omitempty"`
	// Instances is what each process reports of its deliveries to the subscriber.
	Instances map[string]json.RawMessage `json:"instances,omitempty"`
	// Here is what the process that answers does; null if it does not have the role processor.
	Here *delivery.Status `json:"here"`
	// Backlog is null if the brokers' admin API is not known or does not answer.
	Backlog *delivery.Backlog `json:"backlog"`
}

// backlogTimeout bounds how long one answer may wait for the brokers.
const backlogTimeout = 3 * time.Second

func (a *API) status(w http.ResponseWriter, r *http.Request) error {
	s, err := a.subscriber(r)
	if err != nil {
		return err
	}
	status := statusAnswer{Subscriber: s.Name, State: s.State, Reason: s.Reason, Revision: s.Revision}
	status.Active, status.Behind = a.Instances.Active(s.Revision)
	status.Instances = a.Instances.States(s.Bus, s.Name)
	if a.Processor != nil {
		here := a.Processor.Status(s.Bus, s.Name)
		status.Here = &here
		ctx, cancel := context.WithTimeout(r.Context(), backlogTimeout)
		defer cancel()
		if b, err := a.Processor.Backlog(ctx, s.Bus, s.Name); err == nil {
			status.Backlog = &b
		}
	}
	return write(w, http.StatusOK, status)
}

func (a *API) instances(w http.ResponseWriter, _ *http.Request) error {
	return writeList(w, a.Instances.Instances())
}

func (a *API) deliveries(w http.ResponseWriter, r *http.Request) error {
	s, err := a.subscriber(r)
	if err != nil {
		return err
	}
	return writeList(w, a.Processor.Attempts(s.Bus, s.Name))
}

// existing returns the names in the path: of the bus, and of the subscriber if there is one. Both
// have dead letters and jobs. It is an error if one does not exist.
func (a *API) existing(r *http.Request) (bus, subscriber string, err error) {
	bus, subscriber = pathNames(r)
	if subscriber == "" {
		_, _, err = a.bus(r)
	} else {
		_, err = a.subscriber(r)
	}
	return bus, subscriber, err
}

// These bound the dead letters in one answer, and the requests that read some at the same time:
// each takes up to 16 MiB, and one request to the brokers for each dead letter.
const (
	defaultDeadLetters = 20
	maxDeadLetters     = 100
	parallelPeeks      = 2
)

// deadLetters answers with the oldest dead letters.
func (a *API) deadLetters(w http.ResponseWriter, r *http.Request) error {
	bus, subscriber, err := a.existing(r)
	if err != nil {
		return err
	}
	n, err := limitOf(r, defaultDeadLetters, maxDeadLetters)
	if err != nil {
		return err
	}
	if err := acquire(r.Context(), a.peeks); err != nil {
		return err
	}
	defer func() { <-a.peeks }()
	found, err := a.Processor.DeadLetters(r.Context(), bus, subscriber, n)
	if err != nil && !errors.Is(err, messaging.ErrNotFound) {
		return err
	}
	return writeList(w, found)
}

// beginJob returns the handler of requests that begin a job. options reads its options as JSON.
func beginJob[O any](a *API, options func(http.ResponseWriter, *http.Request) ([]byte, error),
	begin func(p Processor, ctx context.Context, bus, subscriber string, o O) (delivery.Job, error),
) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		bus, subscriber, err := a.existing(r)
		if err == nil {
			err = refuseConditions(r)
		}
		if err != nil {
			return err
		}
		text, err := options(w, r)
		if err != nil {
			return err
		}
		var o O
		if err := decodeOptions(text, &o); err != nil {
			return err
		}
		j, err := begin(a.Processor, r.Context(), bus, subscriber, o)
		if err != nil {
			return err
		}
		at := "/v1/buses/" + bus
		if subscriber != "" {
			at += "/subscribers/" + subscriber
		}
		w.Header().Set("Location", at+"/job")
		return write(w, http.StatusAccepted, j)
	}
}

// cancelJob cancels the job of a subscriber, in whichever process it runs, or that of a bus in this
// process.
func (a *API) cancelJob(w http.ResponseWriter, r *http.Request) error {
	bus, subscriber, err := a.existing(r)
	if err == nil {
		err = refuseConditions(r)
	}
	if err != nil {
		return err
	}
	j, err := a.Processor.CancelJob(r.Context(), bus, subscriber)
	if err != nil {
		return err
	}
	return write(w, http.StatusOK, j)
}

// job answers with the latest job of a subscriber, in whichever process it runs or has run, or that
// of a bus in this process.
func (a *API) job(w http.ResponseWriter, r *http.Request) error {
	bus, subscriber, err := a.existing(r)
	if err != nil {
		return err
	}
	var own delivery.Job
	err = delivery.ErrNoJob
	if a.Processor != nil {
		own, err = a.Processor.Job(bus, subscriber)
	}
	stored := delivery.StoredJob(a.StoredJob(bus, subscriber), a.Instances.Instances())
	switch {
	case stored != nil && (err != nil || stored.ID != own.ID && stored.Began.After(own.Began)):
		return write(w, http.StatusOK, stored)
	case err != nil:
		return err
	}
	return write(w, http.StatusOK, own)
}
