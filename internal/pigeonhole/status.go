package pigeonhole

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Status is a route as GET /routes shows it.
type Status struct {
	Name      string `json:"name"`
	Source    string `json:"source"` // the system
	Sink      string `json:"sink"`
	Guarantee string `json:"guarantee"`
	// State is running, paused, unhealthy (running with an error), failed (stopped until it is
	// changed or resumed) or stopping. Since is when it began to run, failed or began to stop.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Unhealthy lists the current errors, LastError is the latest error ever.
	Unhealthy   []string  `json:"unhealthy,omitempty"`
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`

	Pipelines     int   `json:"pipelines"`
	InFlight      int   `json:"in_flight"`
	InFlightBytes int64 `json:"in_flight_bytes"`
	// MaxInFlight and MaxInFlightBytes are the route's own bounds, or its share of the process'.
	MaxInFlight      int   `json:"max_in_flight"`
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	// LagMessages is how many messages wait at the source, -1 when it is not known. InFlightSeconds
	// is the age of the oldest message in flight, see pipeline.State.
	LagMessages     int64   `json:"lag_messages"`
	InFlightSeconds float64 `json:"in_flight_seconds"`
	// Stored, Filtered, Refused and Resent count since the route started.
	Stored   int64 `json:"stored"`
	Filtered int64 `json:"filtered"`
	Refused  int64 `json:"refused"`
	Resent   int64 `json:"resent"`
}

func (r *route) status() Status {
	held := r.pipelines.State()
	source, _ := only(r.cfg.Source)
	sink, _ := only(r.cfg.Sink)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Name: r.cfg.Name, Source: source, Sink: sink, Guarantee: r.cfg.Guarantee,
		State: string(r.phase), Since: r.phaseSince, Pipelines: held.Pipelines, InFlight: held.InFlight, InFlightBytes: held.Bytes,
		MaxInFlight: held.MaxInFlight, MaxInFlightBytes: held.MaxBytes,
		Unhealthy: r.unhealthyParts(), LagMessages: r.lag, InFlightSeconds: held.Oldest.Seconds(),
		Stored: held.Stored, Filtered: held.Filtered, Refused: held.Refused, Resent: held.Resent,
	}
	switch {
	case r.phase != running:
	case held.Paused:
		s.State = "paused"
	case len(s.Unhealthy) > 0:
		s.State = "unhealthy"
	}
	if r.lastErr != nil {
		s.LastError, s.LastErrorAt = r.lastErr.Error(), r.lastErrAt
	}
	return s
}

// handler serves /routes.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) {
		all := []Status{}
		for _, r := range s.all() {
			all = append(all, r.status())
		}
		writeJSON(w, map[string]any{"name": s.current().Name, "routes": all})
	})
	mux.HandleFunc("GET /routes/{name}", s.withRoute(func(*route) error { return nil }))
	mux.HandleFunc("POST /routes/{name}/pause", s.withRoute(func(r *route) error { r.pipelines.Pause(); return nil }))
	mux.HandleFunc("POST /routes/{name}/resume", s.withRoute(s.resume))
	return mux
}

// withRoute calls do with the route that the path names, and responds with the route's state.
func (s *service) withRoute(do func(*route) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		name := req.PathValue("name")
		r := s.find(name)
		if r == nil {
			http.Error(w, "no route has the name "+name, http.StatusNotFound)
			return
		}
		if err := do(r); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		if r = s.find(name); r != nil {
			writeJSON(w, r.status())
		}
	}
}

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(body) // fails only when the client has disconnected
}

// metrics are the metrics of all routes.
type metrics struct {
	pipelines *pipeline.Metrics
	parts     *connector.Metrics    // of sources and sinks
	reg       prometheus.Registerer // for the metrics of the Pulsar client, which have no label route
}

func newMetrics(reg prometheus.Registerer) *metrics {
	named := prometheus.WrapRegistererWithPrefix("pigeonhole_", reg)
	return &metrics{pipelines: pipeline.NewMetrics(named), parts: connector.NewMetrics(named), reg: reg}
}

// collector exports the state of the routes as metrics.
type collector struct {
	service *service
	metrics []stateMetric
}

// stateMetric is a metric of each route. A negative value is not exported.
type stateMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Status) float64
}

func newCollector(s *service) *collector {
	c := &collector{service: s}
	add := func(name, help string, kind prometheus.ValueType, value func(Status) float64) {
		c.metrics = append(c.metrics, stateMetric{prometheus.NewDesc("pigeonhole_"+name, help, []string{"route"}, nil), kind, value})
	}
	gauge := prometheus.GaugeValue
	add("in_flight_messages", "Messages taken from the source and not stored yet.", gauge, func(s Status) float64 { return float64(s.InFlight) })
	add("in_flight_bytes", "Bytes of the messages in flight.", gauge, func(s Status) float64 { return float64(s.InFlightBytes) })
	add("lag_messages", "Messages that wait at the source, as of some seconds ago; absent where it cannot tell.", gauge,
		func(s Status) float64 { return float64(s.LagMessages) })
	add("in_flight_age_seconds", "Age of the oldest message in flight, since its broker stored it or, where that is not known, since it was received here; 0 without one.",
		gauge, func(s Status) float64 { return s.InFlightSeconds })
	add("route_up", "1 while the route runs without a current error, 0 while it is paused, unhealthy or failed.", gauge, func(s Status) float64 {
		if s.State == string(running) {
			return 1
		}
		return 0
	})
	add("resent_total", "Messages sent again because the sink failed.", prometheus.CounterValue, func(s Status) float64 { return float64(s.Resent) })
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.service.all() {
		s := r.status()
		for _, m := range c.metrics {
			if v := m.value(s); v >= 0 {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, v, s.Name)
			}
		}
	}
}
