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
	// State is running, paused, trouble (running, and something is the matter), failed
	// (stopped for good: resume starts it again) or stopping, since Since.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Trouble is what is the matter now, LastError the latest that was.
	Trouble     []string   `json:"trouble,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`

	Lanes         int   `json:"lanes"`
	InFlight      int   `json:"in_flight"`
	InFlightBytes int64 `json:"in_flight_bytes"`
	// MaxInFlight and MaxInFlightBytes are the route's bounds, its share where it has none of its own.
	MaxInFlight      int   `json:"max_in_flight"`
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	// LagMessages wait at the source, -1 when it cannot tell; InFlightSeconds is the age of
	// the oldest message in flight, since it was received here.
	LagMessages     int64   `json:"lag_messages"`
	InFlightSeconds float64 `json:"in_flight_seconds"`
	// Stored and the others count since the route started; Rate is stored per second
	// over the last seconds.
	Stored   int64   `json:"stored"`
	Filtered int64   `json:"filtered"`
	Refused  int64   `json:"refused"`
	Resent   int64   `json:"resent"`
	Rate     float64 `json:"rate"`
}

// status looks at the route.
func (r *route) status() Status {
	held := r.lanes.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		Name: r.cfg.Name, Source: r.cfg.Source.system(), Sink: r.cfg.Sink.system(), Guarantee: r.cfg.Guarantee,
		State: string(r.phase), Since: r.since, Lanes: held.Lanes, InFlight: held.InFlight, InFlightBytes: held.Bytes,
		MaxInFlight: held.MaxInFlight, MaxInFlightBytes: held.MaxBytes,
		Trouble: r.troubles(), LagMessages: r.lag, InFlightSeconds: held.Oldest.Seconds(),
		Stored: held.Stored, Filtered: held.Filtered, Refused: held.Refused, Resent: held.Resent, Rate: r.rate.of(held.Stored, time.Now()),
	}
	switch {
	case r.phase != running:
	case held.Paused:
		s.State = "paused"
	case len(s.Trouble) > 0:
		s.State = "trouble"
	}
	if r.lastErr != nil {
		at := r.errAt
		s.LastError, s.LastErrorAt = r.lastErr.Error(), &at
	}
	return s
}

// rate is how fast a count grows, over at least five seconds between looks.
type rate struct {
	count    int64
	at       time.Time
	previous float64
}

const rateWindow = 5 * time.Second

func (r *rate) of(count int64, now time.Time) float64 {
	passed := now.Sub(r.at)
	if !r.at.IsZero() && passed < rateWindow {
		if r.previous > 0 || passed < time.Second {
			return r.previous
		}
		return float64(count-r.count) / passed.Seconds()
	}
	if !r.at.IsZero() {
		r.previous = float64(count-r.count) / passed.Seconds()
	}
	r.count, r.at = count, now
	return r.previous
}

func (c SourceConfig) system() string { return system(c.Kafka != nil, c.RabbitMQ != nil) }
func (c SinkConfig) system() string   { return system(c.Kafka != nil, c.RabbitMQ != nil) }

func system(kafka, rabbitmq bool) string {
	switch {
	case kafka:
		return "kafka"
	case rabbitmq:
		return "rabbitmq"
	default:
		return "pulsar"
	}
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
		answer(w, map[string]any{"name": s.current().Name, "routes": all})
	})
	mux.HandleFunc("GET /routes/{name}", s.on(func(r *route) error { return nil }))
	mux.HandleFunc("POST /routes/{name}/pause", s.on(func(r *route) error { r.lanes.Pause(); return nil }))
	mux.HandleFunc("POST /routes/{name}/resume", s.on(s.resume))
	return mux
}

// on does something with the route that the path names, and answers with its state.
func (s *service) on(do func(*route) error) http.HandlerFunc {
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
			answer(w, r.status())
		}
	}
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(body) // fails only when the client is gone
}

// collector is the routes' state as metrics.
type collector struct {
	service                                 *service
	inFlight, bytes, lag, age, up, rerouted *prometheus.Desc
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
		age:      desc("in_flight_age_seconds", "Age of the oldest message in flight, since it was received here; 0 without one."),
		up:       desc("route_up", "1 while the route runs and nothing is the matter, 0 while it is paused, in trouble or failed."),
		rerouted: desc("resent_total", "Messages sent again because the sink failed."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.inFlight, c.bytes, c.lag, c.age, c.up, c.rerouted} {
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
		out <- prometheus.MustNewConstMetric(c.rerouted, prometheus.CounterValue, float64(s.Resent), s.Name)
	}
}
