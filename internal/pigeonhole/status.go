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
	descs   []*prometheus.Desc // in the order of the values in Collect
}

func newCollector(s *service) *collector {
	c := &collector{service: s}
	for _, metric := range [][2]string{
		{"resent_total", "Messages sent again because the sink failed."},
		{"in_flight_messages", "Messages taken from the source and not stored yet."},
		{"in_flight_bytes", "Bytes of the messages in flight."},
		{"lag_messages", "Messages that wait at the source, measured every 10 s; absent if the source cannot report it."},
		{"in_flight_age_seconds", "Age of the oldest message in flight, since the source's broker stored it or, if that is unknown," +
			" since this process received it; 0 if no message is in flight."},
		{"route_up", "1 while the route runs without a current error, 0 while it is paused, unhealthy or failed."},
	} {
		c.descs = append(c.descs, prometheus.NewDesc("pigeonhole_"+metric[0], metric[1], []string{"route"}, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.service.all() {
		s, up, kind := r.status(), 0., prometheus.CounterValue
		if s.State == string(running) {
			up = 1
		}
		values := []float64{
			float64(s.Resent), float64(s.InFlight), float64(s.InFlightBytes), float64(s.LagMessages), s.InFlightSeconds, up,
		}
		for i, v := range values {
			if v >= 0 { // an unknown lag is absent
				out <- prometheus.MustNewConstMetric(c.descs[i], kind, v, s.Name)
			}
			kind = prometheus.GaugeValue // all but the first
		}
	}
}
