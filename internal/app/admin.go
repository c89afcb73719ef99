package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/aviaryhq/aviary/internal/config"
)

// adminGrace is how long admin requests may still run after all else has stopped: a profile in
// progress must not delay the exit.
const adminGrace = time.Second

// adminConnections bounds the connections of the admin server that wait for a request: probes and
// scrapers have a few.
const adminConnections = 32

// serveAdmin starts the admin server as the first stage, so that it answers before the first
// dependency is dialled and until the last one is closed.
func (r *Runtime) serveAdmin(ctx context.Context, address string) error {
	ln, err := r.Listen(ctx, "admin", "admin.listen", address)
	if err != nil {
		return err
	}
	server := r.adminServer()
	r.Go("admin", func(ctx context.Context) error {
		err := Serve(ctx, ln, server, adminGrace)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	})
	return nil
}

func (r *Runtime) adminServer() *http.Server {
	bounded := &connections{most: adminConnections}
	return &http.Server{
		Handler:           r.adminHandler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // pprof extends it by the seconds that were asked for
		ErrorLog:          errorLog(r.Log.Named("admin")),
		ConnState:         bounded.observe,
	}
}

func (r *Runtime) adminHandler() http.Handler {
	mux := r.admin
	mux.HandleFunc("/", r.index)
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.Metrics, promhttp.HandlerOpts{Registry: r.Metrics, ErrorLog: errorLog(r.Log.Named("metrics"))}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("healthy\n")) })
	mux.Handle("GET /-/ready", r.health)
	mux.HandleFunc("GET /-/config", func(w http.ResponseWriter, _ *http.Request) {
		text, err := config.YAML(r.config.Load())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(text)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// readyGauge returns the result of /-/ready as a metric.
func readyGauge(checks *checkSet) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "aviary_ready", Help: "1 while /-/ready answers 200: the process has started, and all its checks pass. Otherwise 0.",
	}, func() float64 {
		if checks.read(context.Background()).Status == ready {
			return 1
		}
		return 0
	})
}

// newRegistry returns a registry with the metrics of the process itself.
func newRegistry(name string) *prometheus.Registry {
	build := ThisBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "aviary_build_info",
		Help:        "Version, commit and Go version of the process, as labels. Always 1.",
		ConstLabels: prometheus.Labels{"service": name, "version": build.Version, "commit": build.Commit, "go_version": build.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info)
	return registry
}
