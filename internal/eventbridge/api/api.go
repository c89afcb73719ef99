package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
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

// Jobs has the latest jobs of all processes, as JSON. A store.Store is one.
type Jobs interface {
	Job(bus, subscriber string) json.RawMessage
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
	Jobs      Jobs // nil: only the jobs of this process are known
	Access    Access
	Instance  string // the name of this process
	Version   string
	Log       *zap.Logger
}

// API answers requests. It is safe for concurrent use.
type API struct {
	Options
	document  []byte            // OpenAPI, as JSON
	bodies    *admission.Budget // for bodies of requests
	answers   *admission.Budget // for large answers until they are sent
	peekSlots chan struct{}     // holds one element for each request that reads dead letters
}

// New makes the API.
func New(o Options) (*API, error) {
	document, err := documentOf(o.Version)
	if err != nil {
		return nil, err
	}
	o.Log = o.Log.Named("api")
	unregistered := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bytes"}) // not registered: no metric shows it
	return &API{
		Options: o, document: document, bodies: admission.NewBudget(bodiesBytes, 1, unregistered), answers: admission.NewBudget(answersBytes, 1, unregistered), peekSlots: make(chan struct{}, peeksAtOnce),
	}, nil
}

// Routes adds the API's routes, all below /v1, and answers where there is no route.
func (a *API) Routes(r chi.Router) {
	unknownPath(r)
	r.Group(func(r chi.Router) {
		r.Use(a.knownHost, a.sameSite, a.authorized, a.bounded)
		r.Get("/v1/openapi.json", a.openAPI)
		r.Get("/v1/instances", a.instances)
		r.Post("/v1/patterns:test", a.testPattern)

		r.Get("/v1/buses", a.listBuses)
		r.Get("/v1/buses/{bus}", a.getBus)
		r.Put("/v1/buses/{bus}", a.putBus)
		r.Delete("/v1/buses/{bus}", a.deleteBus)
		r.Get("/v1/buses/{bus}/dead-letters", a.deadLetters)
		r.Delete("/v1/buses/{bus}/dead-letters", a.discard)
		r.Get("/v1/buses/{bus}/job", a.busJob)
		r.Delete("/v1/buses/{bus}/job", a.cancelJob)

		const subscriber = "/v1/buses/{bus}/subscribers/{subscriber}"
		r.Get("/v1/buses/{bus}/subscribers", a.listSubscribers)
		r.Get(subscriber, a.getSubscriber)
		r.Put(subscriber, a.putSubscriber)
		r.Delete(subscriber, a.deleteSubscriber)
		r.Post(subscriber+":pause", a.setState(model.Paused))
		r.Post(subscriber+":resume", a.setState(model.Active))
		r.Post(subscriber+":disable", a.setState(model.Disabled))
		r.Post(subscriber+":redrive", a.redrive)
		r.Post(subscriber+":replay", a.replay)
		r.Get(subscriber+"/status", a.status)
		r.Get(subscriber+"/deliveries", a.deliveries)
		r.Get(subscriber+"/dead-letters", a.deadLetters)
		r.Delete(subscriber+"/dead-letters", a.discard)
		r.Get(subscriber+"/job", a.job)
		r.Delete(subscriber+"/job", a.cancelJob)
	})
}

func (a *API) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(a.document) // it fails when the client has closed the connection
}
