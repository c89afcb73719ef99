package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// statusAnswer is what is known of a subscriber's deliveries.
type statusAnswer struct {
	Subscriber string         `json:"subscriber"`
	State      registry.State `json:"state"`
	Reason     string         `json:"reason,omitempty"`
	Revision   int64          `json:"revision"`
	// Active says whether all engines match by this revision, Behind which do not.
	Active bool     `json:"active"`
	Behind []string `json:"behind,omitempty"`
	// Instances is what each process has told of its deliveries to the subscriber.
	Instances map[string]json.RawMessage `json:"instances,omitempty"`
	// Here is what the process that answers does; null in one without the role processor.
	Here *processor.Status `json:"here"`
	// Backlog is null where the brokers' admin API is not known or does not answer.
	Backlog *processor.Backlog `json:"backlog"`
}

// backlogTimeout bounds asking brokers for one answer.
const backlogTimeout = 3 * time.Second

func (a *API) status(w http.ResponseWriter, r *http.Request) {
	s, err := a.subscriber(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	answer := statusAnswer{Subscriber: s.Name, State: s.State, Reason: s.Reason, Revision: s.Revision}
	answer.Active, answer.Behind = a.Instances.Active(s.Revision)
	answer.Instances = a.Instances.States(s.Bus, s.Name)
	if a.Processor != nil {
		here := a.Processor.Status(s.Bus, s.Name)
		answer.Here = &here
		ctx, cancel := context.WithTimeout(r.Context(), backlogTimeout)
		defer cancel()
		if b, err := a.Processor.Backlog(ctx, s.Bus, s.Name); err == nil {
			answer.Backlog = &b
		}
	}
	write(w, http.StatusOK, answer)
}

func (a *API) instances(w http.ResponseWriter, _ *http.Request) {
	found := list[registry.Instance]{Items: []registry.Instance{}}
	found.Items = append(found.Items, a.Instances.Instances()...)
	write(w, http.StatusOK, found)
}

// errNoProcessor is answered where the role is missing.
var errNoProcessor = &refusal{status: http.StatusNotImplemented, text: "this process has not the role processor: ask one that has it"}

// delivering returns the subscriber of the path, where this process delivers.
func (a *API) delivering(r *http.Request) (*registry.Subscriber, error) {
	if a.Processor == nil {
		return nil, errNoProcessor
	}
	return a.subscriber(r)
}

func (a *API) deliveries(w http.ResponseWriter, r *http.Request) {
	s, err := a.delivering(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	found := list[processor.Attempt]{Items: []processor.Attempt{}}
	found.Items = append(found.Items, a.Processor.Attempts(s.Bus, s.Name)...)
	write(w, http.StatusOK, found)
}

// Bounds of dead letters in one answer.
const (
	usualLetters = 20
	mostLetters  = 100
)

func (a *API) deadLetters(w http.ResponseWriter, r *http.Request) {
	s, err := a.delivering(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	n, err := number(r.URL.Query().Get("limit"), usualLetters, mostLetters)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	letters, err := a.Processor.DeadLetters(r.Context(), s.Bus, s.Name, n)
	if err != nil && !errors.Is(err, messaging.ErrNotFound) {
		a.refuse(w, r, err)
		return
	}
	found := list[processor.DeadLetter]{Items: []processor.DeadLetter{}}
	found.Items = append(found.Items, letters...)
	write(w, http.StatusOK, found)
}
