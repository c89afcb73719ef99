package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
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
	found := list[instances.Instance]{Items: []instances.Instance{}}
	found.Items = append(found.Items, a.Instances.Instances()...)
	write(w, http.StatusOK, found)
}

// errNoProcessor is the answer of a process without the role.
var errNoProcessor = &statusError{status: http.StatusNotImplemented, text: "this process does not have the role processor: ask one that does"}

// holder returns the subscriber in the path or, if the path is about a bus, a subscriber without a
// name: both have dead letters and jobs. It is an error if this process has no processor.
func (a *API) holder(r *http.Request) (*model.Subscriber, error) {
	if chi.URLParam(r, "subscriber") != "" {
		return a.delivering(r)
	}
	if a.Processor == nil {
		return nil, errNoProcessor
	}
	_, b, err := a.bus(r)
	if err != nil {
		return nil, err
	}
	return &model.Subscriber{Bus: b.Name}, nil
}

// delivering returns the subscriber in the path, if this process has a processor.
func (a *API) delivering(r *http.Request) (*model.Subscriber, error) {
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
	found := list[delivery.Attempt]{Items: []delivery.Attempt{}}
	found.Items = append(found.Items, a.Processor.Attempts(s.Bus, s.Name)...)
	write(w, http.StatusOK, found)
}

// These bound the dead letters in one answer, and the requests that read some at the same time:
// each takes up to 16 MiB, and one request to the brokers for each dead letter.
const (
	usualLetters = 20
	mostLetters  = 100
	peeksAtOnce  = 2
)

func (a *API) deadLetters(w http.ResponseWriter, r *http.Request) {
	s, err := a.holder(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	n, err := number(r.URL.Query().Get("limit"), usualLetters, mostLetters)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	body, err := a.peek(r, s, n)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	send(w, http.StatusOK, body)
}

// peek returns the oldest dead letters as an answer.
func (a *API) peek(r *http.Request, s *model.Subscriber, n int) ([]byte, error) {
	select {
	case a.peekSlots <- struct{}{}:
		defer func() { <-a.peekSlots }()
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	deadLetters, err := a.Processor.DeadLetters(r.Context(), s.Bus, s.Name, n)
	if err != nil && !errors.Is(err, messaging.ErrNotFound) {
		return nil, err
	}
	found := list[delivery.DeadLetter]{Items: []delivery.DeadLetter{}}
	found.Items = append(found.Items, deadLetters...)
	body, err := encode(found)
	if err != nil {
		return nil, err
	}
	return body, a.hold(r, body)
}

// discard begins a job that removes dead letters. The options are in the address: a proxy may drop
// the body of a DELETE, and without a filter all dead letters would be removed.
func (a *API) discard(w http.ResponseWriter, r *http.Request) {
	var o delivery.RedriveOptions
	a.begin(w, r, func() error { return filterOf(r, &o) }, func(s *model.Subscriber) (delivery.Job, error) {
		return a.Processor.Discard(r.Context(), s.Bus, s.Name, o)
	})
}

// filterOf reads which dead letters are selected.
func filterOf(r *http.Request, o *delivery.RedriveOptions) error {
	if r.ContentLength != 0 { // the body may be a filter or ask for a dry run, as that of a redrive: ignoring it would remove all
		return refused(http.StatusBadRequest, "this request must not have a body: say in the query what to remove, as in ?type=stock.low&dry_run=true")
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refused(http.StatusBadRequest, "the address has a query that cannot be read: "+err.Error())
	}
	for key, values := range q {
		value, err := values[0], error(nil)
		if len(values) > 1 {
			return refused(http.StatusBadRequest, key+" occurs twice")
		}
		switch key {
		case "reason":
			o.Reason = value
		case "type":
			o.Type = value
		case "from":
			o.From, err = time.Parse(time.RFC3339, value)
		case "to":
			o.To, err = time.Parse(time.RFC3339, value)
		case "rate":
			o.Rate, err = strconv.ParseFloat(value, 64)
		case "max":
			o.Max, err = strconv.Atoi(value)
		case "dry_run":
			o.DryRun, err = strconv.ParseBool(value)
		default:
			return refused(http.StatusBadRequest, "there is no such parameter: "+strconv.Quote(key))
		}
		switch {
		case err != nil && value != "":
			return refused(http.StatusBadRequest, key+" cannot be read: "+err.Error())
		case value == "", key == "from" && o.From.IsZero(), key == "to" && o.To.IsZero(): // it would select all
			return refused(http.StatusBadRequest, key+noValue)
		}
	}
	return nil
}
