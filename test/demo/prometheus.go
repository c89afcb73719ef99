package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// edition is one of the two Prometheuses: that of the distribution, which writes
// remote write 1.0, and a current one, which writes 2.0.
type edition struct {
	name     string // of the process and the flow
	server   string // in test/stack
	binary   string // the key of its path
	features string
	remote   string // of the configuration of remote write
	scrape   string // of each scrape configuration
	joins    bool
}

func stockPrometheus() edition {
	return edition{
		name: "prometheus", server: "prometheus", binary: "PROMETHEUS_BIN",
		features: "native-histograms,exemplar-storage",
		remote:   "  send_exemplars: true\n  metadata_config: {send_interval: 5s}\n",
	}
}

// currentPrometheus sends no exemplars: in 2.0 it puts each into a series without
// samples, which the specification forbids and receivers, its own included, refuse.
// Types come with the series by type-and-unit-labels: 3.15 takes the feature
// metadata-wal-records and then writes no such records.
func currentPrometheus() edition {
	return edition{
		name: "prometheus-current", server: "prometheus-current", binary: "PROMETHEUS_CURRENT_BIN",
		features: "type-and-unit-labels,st-storage",
		remote:   "  protobuf_message: io.prometheus.write.v2.Request\n",
		scrape:   "  scrape_native_histograms: true\n",
		joins:    true, // a build of minutes, the first time
	}
}

// prometheus is a real Prometheus that scrapes targets and remote-writes what it
// scrapes.
type prometheus struct {
	*child
	edition edition
	address string
	config  string // path
	target  string // of remote write
	curves  *curves
}

func startPrometheus(ctx context.Context, env *environment, e edition, writeTo string, scrape ...string) (*prometheus, error) {
	address, err := env.ports.listen(e.name, 9090)
	if err != nil {
		return nil, err
	}
	p := &prometheus{edition: e, address: address, config: filepath.Join(env.dir, e.name+".yml"), target: writeTo}
	if e == stockPrometheus() && env.curves != nil {
		p.curves = env.curves
		p.curves.drawnBy(address)
	}
	if err := p.configure(append(scrape, address)...); err != nil {
		return nil, err
	}
	p.child, err = spawn(env.dir, e.name, env.servers[e.binary], nil,
		"--config.file="+p.config,
		"--storage.tsdb.path="+filepath.Join(env.dir, e.name),
		"--web.listen-address="+address,
		"--web.enable-lifecycle",
		"--storage.remote.flush-deadline=10s", // of the stop, when the receiver was killed
		"--enable-feature="+e.features)
	if err != nil {
		return nil, err
	}
	return p, p.await(ctx, "not ready", func(ctx context.Context) error { return p.request(ctx, http.MethodGet, "/-/ready") })
}

// configure writes the configuration with the targets to scrape. Remote write
// stays as it is, so that its queue lives on through a reload.
func (p *prometheus) configure(targets ...string) error {
	var b strings.Builder
	b.WriteString("global: {scrape_interval: 1s}\n")
	fmt.Fprintf(&b, "remote_write:\n- url: %s\n%s  send_native_histograms: true\n  queue_config: {batch_send_deadline: 1s}\n", p.target, p.edition.remote)
	if len(targets) > 0 {
		fmt.Fprintf(&b, "scrape_configs:\n- job_name: aviary\n%s  static_configs: [{targets: ['%s']}]\n", p.edition.scrape, strings.Join(targets, "', '"))
		if p.curves != nil {
			b.WriteString(p.curves.config())
		}
	}
	return os.WriteFile(p.config, []byte(b.String()), 0o600)
}

// quiet stops scraping and returns once everything scraped has been sent, or has
// not been and never will be, and nothing came for a while: series end with a
// stale marker some intervals after their target has gone.
func (p *prometheus) quiet(ctx context.Context) error {
	if err := p.configure(); err != nil {
		return err
	}
	if err := p.request(ctx, http.MethodPost, "/-/reload"); err != nil {
		return err
	}
	var last sent
	since := time.Now()
	return p.await(ctx, "its remote write did not come to rest", func(ctx context.Context) error {
		now, err := p.sent(ctx)
		if err != nil {
			return err
		}
		if now != last {
			last, since = now, time.Now()
		}
		if now.pending > 0 {
			return fmt.Errorf("%d samples are pending", now.pending)
		}
		if time.Since(since) < standStill {
			return errors.New("still sending")
		}
		return nil
	})
}

// sent is what Prometheus says about its remote write. Comparable: it is also how
// rest is noticed.
type sent struct {
	samples, histograms, exemplars int64 // handed over; once nothing is pending: acknowledged
	failed, retried, dropped       int64
	pending                        int64
}

// all is the sum of all kinds.
func (s sent) all() int64 { return s.samples + s.histograms + s.exemplars }

// sent reads Prometheus' own counters.
func (p *prometheus) sent(ctx context.Context) (sent, error) {
	families, err := p.metrics(ctx)
	if err != nil {
		return sent{}, err
	}
	sum := func(name string) (n int64) {
		for _, m := range families["prometheus_remote_storage_"+name].GetMetric() {
			n += int64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
		}
		return n
	}
	var s sent
	for kind, handed := range map[string]*int64{"samples": &s.samples, "histograms": &s.histograms, "exemplars": &s.exemplars} {
		failed, retried := sum(kind+"_failed_total"), sum(kind+"_retried_total")
		*handed = sum(kind+"_total") - failed - retried // Prometheus counts each attempt
		s.failed += failed
		s.retried += retried
		s.dropped += sum(kind + "_dropped_total")
		s.pending += sum(kind + "_pending")
	}
	if s.samples == 0 {
		return sent{}, errors.New("nothing sent yet")
	}
	return s, nil
}

func (p *prometheus) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	body, err := p.do(ctx, http.MethodGet, "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(body)
}

func (p *prometheus) request(ctx context.Context, method, path string) error {
	body, err := p.do(ctx, method, path)
	if err != nil {
		return err
	}
	return body.Close()
}

func (p *prometheus) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.address+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp.Body, nil
}
