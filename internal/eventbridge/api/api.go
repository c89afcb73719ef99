package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// Registry is what the API shows and changes. A store.Store is one.
type Registry interface {
	Snapshot() *store.Snapshot
	PutBus(ctx context.Context, b model.Bus, c store.Condition) (*model.Bus, bool, error)
	DeleteBus(ctx context.Context, name string, c store.Condition) error
	PutSubscriber(ctx context.Context, s model.Subscriber, c store.Condition) (*model.Subscriber, bool, error)
	DeleteSubscriber(ctx context.Context, bus, name string, c store.Condition) error
	ChangeState(ctx context.Context, bus, name string, state model.State, reason string, c store.Condition) (*model.Subscriber, error)
}

// Processor is the processor of this process. A delivery.Processor is one.
type Processor interface {
	Status(bus, subscriber string) delivery.Status
	Attempts(bus, subscriber string) []delivery.Attempt
	Backlog(ctx context.Context, bus, subscriber string) (delivery.Backlog, error)
	// Without a subscriber, DeadLetters, Discard, Job and CancelJob are about the bus itself.
	DeadLetters(ctx context.Context, bus, subscriber string, n int) ([]delivery.DeadLetter, error)
	Discard(ctx context.Context, bus, subscriber string, o delivery.RedriveOptions) (delivery.Job, error)
	Redrive(ctx context.Context, bus, subscriber string, o delivery.RedriveOptions) (delivery.Job, error)
	Replay(ctx context.Context, bus, subscriber string, o delivery.ReplayOptions) (delivery.Job, error)
	// Start begins the replay of a new subscriber that begins in the past.
	Start(ctx context.Context, bus, subscriber string) (j delivery.Job, began bool, err error)
	Job(bus, subscriber string) (delivery.Job, error)
	CancelJob(ctx context.Context, bus, subscriber string) (delivery.Job, error)
}

// Instances knows which instance does what. An instances.Status is one.
type Instances interface {
	Instances() []instances.Instance
	// Active reports whether all engines match by this revision of the registry or a later one, and
	// which engines do not.
	Active(revision int64) (active bool, behind []string)
	// States returns what each instance reports about a subscriber.
	States(bus, name string) map[string]json.RawMessage
}

// Options are what the API needs.
type Options struct {
	Registry  Registry
	Checks    model.Checks
	Processor Processor // nil in a process without that role
	Instances Instances
	// StoredJob returns the latest job of a subscriber, of whichever process, as JSON; nil: none. A
	// store.Store has it.
	StoredJob func(bus, subscriber string) json.RawMessage
	Access    Access
	Version   string
	Log       *zap.Logger
}

// API answers requests. It is safe for concurrent use.
type API struct {
	Options
	document []byte // OpenAPI, as JSON
	// These hold one element for each request, and for each request that reads dead letters.
	requests, peeks chan struct{}
}

// New makes the API.
func New(o Options) (*API, error) {
	document, err := documentOf(o.Version)
	if err != nil {
		return nil, err
	}
	o.Log = o.Log.Named("api")
	return &API{
		Options: o, document: document, requests: make(chan struct{}, parallelRequests), peeks: make(chan struct{}, parallelPeeks),
	}, nil
}

// Routes adds the API's routes, all below /v1, and answers where there is no route.
func (a *API) Routes(r chi.Router) {
	unknownPath(r)
	const bus, subscriber = "/v1/buses/{bus}", "/v1/buses/{bus}/subscribers/{subscriber}"
	r = r.With(a.Access.Hosts.Middleware(func() bool { return a.Access.Tokens != nil }), a.sameSite, a.authorized, a.bounded)
	r.Get("/v1/openapi.json", a.openAPI)
	r.Get("/v1/instances", a.answer(a.instances))
	r.Post("/v1/patterns:test", a.answer(a.testPattern))
	r.Get("/v1/buses", a.answer(a.listBuses))
	r.Get(bus, a.answer(a.getBus))
	r.Put(bus, a.answer(a.putBus))
	r.Delete(bus, a.answer(a.deleteObject))
	r.Get(bus+"/subscribers", a.answer(a.listSubscribers))
	r.Get(subscriber, a.answer(a.getSubscriber))
	r.Put(subscriber, a.answer(a.putSubscriber))
	r.Delete(subscriber, a.answer(a.deleteObject))
	r.Post(subscriber+":pause", a.answer(a.setState(model.Paused)))
	r.Post(subscriber+":resume", a.answer(a.setState(model.Active)))
	r.Post(subscriber+":disable", a.answer(a.setState(model.Disabled)))
	r.Get(subscriber+"/status", a.answer(a.status))
	r.Get(subscriber+"/job", a.answer(a.job))

	r = r.With(a.withProcessor)
	r.Get(subscriber+"/deliveries", a.answer(a.deliveries))
	r.Post(subscriber+":redrive", a.answer(beginJob(a, bodyOptions, Processor.Redrive)))
	r.Post(subscriber+":replay", a.answer(beginJob(a, bodyOptions, Processor.Replay)))
	r.Get(bus+"/job", a.answer(a.job))
	for _, holder := range []string{bus, subscriber} {
		r.Get(holder+"/dead-letters", a.answer(a.deadLetters))
		r.Delete(holder+"/dead-letters", a.answer(beginJob(a, queryOptions, Processor.Discard)))
		r.Delete(holder+"/job", a.answer(a.cancelJob))
	}
}

// answerWithin bounds a request, from its headers to its answer: a request that waits for Pulsar
// longer gets 503. sendWithin bounds the time to send the answer. parallelRequests bounds the memory
// of requests: each takes a few MiB at most.
const (
	answerWithin     = 20 * time.Second
	sendWithin       = 30 * time.Second
	parallelRequests = 16
)

var errTookLong = errors.New("it took longer than " + answerWithin.String())

// bounded bounds a request's time, and how many there are at once. The server's own bounds of time
// are for senders of events: with them, a change that has waited for Pulsar would get no answer.
func (a *API) bounded(next http.Handler) http.Handler {
	return a.answer(func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := context.WithTimeoutCause(r.Context(), answerWithin, errTookLong)
		defer cancel()
		// It fails where the server has no deadlines, as in tests.
		deadlines := http.NewResponseController(w)
		_ = deadlines.SetReadDeadline(time.Now().Add(answerWithin))
		_ = deadlines.SetWriteDeadline(time.Now().Add(answerWithin + sendWithin))
		if err := acquire(ctx, a.requests); err != nil {
			return err
		}
		defer func() { <-a.requests }()
		next.ServeHTTP(w, r.WithContext(ctx))
		return nil
	})
}

// acquire waits for a free place in slots, until ctx ends.
func acquire(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// withProcessor refuses requests that only a process with the role processor can answer.
func (a *API) withProcessor(next http.Handler) http.Handler {
	return a.answer(func(w http.ResponseWriter, r *http.Request) error {
		if a.Processor == nil {
			return refused(http.StatusNotImplemented, "this process does not have the role processor: ask one that does")
		}
		next.ServeHTTP(w, r)
		return nil
	})
}
