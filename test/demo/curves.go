package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// curves has the first Prometheus of a demo scrape the services, and leads to a page with what they
// do. A smoke has none: it compares what Prometheus sends with what arrives.
type curves struct {
	file   string // of targets, which Prometheus reads again by itself
	listen string
	server *http.Server // redirects from a short address to that of the page

	mu      sync.Mutex
	address string // of Prometheus
	targets []scraped
}

// scraped is an item of Prometheus' file of targets.
type scraped struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func newCurves(ctx context.Context, dir string, ports *ports) (*curves, error) {
	c := &curves{file: filepath.Join(dir, "targets.json")}
	if err := os.WriteFile(c.file, []byte("[]"), 0o600); err != nil {
		return nil, err
	}
	address, err := ports.listen("curves", 9099)
	if err != nil {
		return nil, err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.listen = ln.Addr().String()
	c.server = &http.Server{Handler: http.HandlerFunc(c.redirect), ReadHeaderTimeout: patience}
	go func() { _ = c.server.Serve(ln) }()
	return c, nil
}

func (c *curves) close() { _ = c.server.Close() }

// url is the short address.
func (c *curves) url() string { return "http://" + c.listen + "/" }

func (c *curves) redirect(w http.ResponseWriter, r *http.Request) {
	page := c.page()
	if page == "" {
		http.Error(w, "Prometheus does not run yet", http.StatusServiceUnavailable)
		return
	}
	http.Redirect(w, r, page, http.StatusFound)
}

// drawnBy tells the address of Prometheus.
func (c *curves) drawnBy(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = address
}

// scrape adds a service by the address of its admin server. c may be nil.
func (c *curves) scrape(job, admin string) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets = append(c.targets, scraped{Targets: []string{admin}, Labels: map[string]string{"job": job}})
	text, err := json.Marshal(c.targets)
	if err != nil {
		return err
	}
	// In one step: Prometheus may be reading it.
	if err := os.WriteFile(c.file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

// config is what Prometheus' scrape configurations have besides.
func (c *curves) config() string {
	return "- job_name: services\n  scrape_interval: 5s\n  file_sd_configs: [{files: ['" + c.file + "'], refresh_interval: 5s}]\n"
}

// page is the address of the page, empty before Prometheus has one.
func (c *curves) page() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.address == "" {
		return ""
	}
	q := url.Values{}
	for i, expr := range []string{
		`sum by (job) (rate(nightingale_samples_total{result="written"}[30s]))`,
		`sum by (route) (rate(pigeonhole_messages_total{result="stored"}[30s]))`,
		`sonic_lag_seconds`,
		`sum by (subscriber, outcome) (rate(eventbridge_deliveries_total[30s]))`,
		`rate(process_cpu_seconds_total[30s])`,
	} {
		g := "g" + strconv.Itoa(i) + "."
		q.Set(g+"expr", expr)
		q.Set(g+"tab", "0")
		q.Set(g+"range_input", "5m")
	}
	return "http://" + c.address + "/graph?" + q.Encode()
}
