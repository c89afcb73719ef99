package pigeonhole

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is a route as GET /routes shows it.
type Status struct {
	Name      string `json:"name"`
	Source    string `json:"source"` // kafka, rabbitmq or pulsar
	Sink      string `json:"sink"`
	Guarantee string `json:"guarantee"`
	// State is running, paused, unhealthy (running, and a part is unhealthy), failed (stopped until
	// it is changed or resumed) or stopping. Since is when the route began to run, failed or began
	// to stop.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Unhealthy lists the current errors, LastError is the latest error ever.
	Unhealthy   []string   `json:"unhealthy,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`

	Pipelines     int   `json:"pipelines"`
	InFlight      int   `json:"in_flight"`
	InFlightBytes int64 `json:"in_flight_bytes"`
	// MaxInFlight and MaxInFlightBytes are the route's bounds: its own, or its share of the
	// process's bounds.
	MaxInFlight      int   `json:"max_in_flight"`
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	// LagMessages is how many messages wait at the source, -1 when it is not known. InFlightSeconds
	// is the age of the oldest message in flight, since the source's broker stored it or, if the
	// broker does not say when, since this process received it.
	LagMessages     int64   `json:"lag_messages"`
	InFlightSeconds float64 `json:"in_flight_seconds"`
	// Stored, Filtered, Refused and Resent count since the route started. Rate is how many messages
	// were stored per second, over the last seconds.
	Stored   int64   `json:"stored"`
	Filtered int64   `json:"filtered"`
	Refused  int64   `json:"refused"`
	Resent   int64   `json:"resent"`
	Rate     float64 `json:"rate"`
}

// status returns the current state of the route.
func (r *route) status() Status {
	held := r.pipelines.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Name: r.cfg.Name, Source: r.cfg.Source.system(), Sink: r.cfg.Sink.system(), Guarantee: r.cfg.Guarantee,
		State: string(r.phase), Since: r.phaseSince, Pipelines: held.Pipelines, InFlight: held.InFlight, InFlightBytes: held.Bytes,
		MaxInFlight: held.MaxInFlight, MaxInFlightBytes: held.MaxBytes,
		Unhealthy: r.unhealthyParts(), LagMessages: r.lag, InFlightSeconds: held.Oldest.Seconds(),
		Stored: held.Stored, Filtered: held.Filtered, Refused: held.Refused, Resent: held.Resent, Rate: r.rate.update(held.Stored, time.Now()),
	}
	switch {
	case r.phase != running:
	case held.Paused:
		s.State = "paused"
	case len(s.Unhealthy) > 0:
		s.State = "unhealthy"
	}
	if r.lastErr != nil {
		at := r.lastErrAt
		s.LastError, s.LastErrorAt = r.lastErr.Error(), &at
	}
	return s
}

// rate measures how fast a count grows, over intervals of at least rateWindow.
type rate struct {
	count int64
	at    time.Time
	last  float64
}

const rateWindow = 5 * time.Second

func (r *rate) update(count int64, now time.Time) float64 {
	passed := now.Sub(r.at)
	if !r.at.IsZero() && passed < rateWindow {
		if r.last > 0 || passed < time.Second {
			return r.last
		}
		return float64(count-r.count) / passed.Seconds()
	}
	if !r.at.IsZero() {
		r.last = float64(count-r.count) / passed.Seconds()
	}
	r.count, r.at = count, now
	return r.last
}

// handler answers GET /routes, GET /routes/{name} and POST /routes/{name}/pause and
// /resume.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) {
		all := []Status{}
		for _, r := range s.all() {
			all = append(all, r.status())
		}
		slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
		writeJSON(w, map[string]any{"name": s.current().Name, "routes": all})
	})
	mux.HandleFunc("GET /routes/{name}", s.withRoute(func(r *route) error { return nil }))
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
			http.Error(w, "there is no route "+name, http.StatusNotFound)
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

// collector exports the state of the routes as metrics.
type collector struct {
	service                               *service
	inFlight, bytes, lag, age, up, resent *prometheus.Desc
}

func newCollector(s *service) *collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("pigeonhole_"+name, help, []string{"route"}, nil)
	}
	return &collector{
		service:  s,
		inFlight: desc("in_flight_messages", "Messages taken from the source and not stored yet."),
		bytes:    desc("in_flight_bytes", "Bytes of the messages in flight."),
		lag:      desc("lag_messages", "Messages that wait at the source, as of some seconds ago; absent where it cannot tell."),
		age:      desc("in_flight_age_seconds", "Age of the oldest message in flight, since its broker stored it or, where that is not known, since it was received here; 0 without one."),
		up:       desc("route_up", "1 while the route runs without a current error, 0 while it is paused, unhealthy or failed."),
		resent:   desc("resent_total", "Messages sent again because the sink failed."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.inFlight, c.bytes, c.lag, c.age, c.up, c.resent} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.service.all() {
		s := r.status()
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Name)
		}
		gauge(c.inFlight, float64(s.InFlight))
		gauge(c.bytes, float64(s.InFlightBytes))
		gauge(c.age, s.InFlightSeconds)
		if s.LagMessages >= 0 {
			gauge(c.lag, float64(s.LagMessages))
		}
		up := 0.0
		if s.State == string(running) {
			up = 1
		}
		gauge(c.up, up)
		out <- prometheus.MustNewConstMetric(c.resent, prometheus.CounterValue, float64(s.Resent), s.Name)
	}
}
