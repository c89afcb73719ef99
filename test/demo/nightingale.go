package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// nightingaleFlow shows a real Prometheus that remote-writes to Nightingale, which
// publishes to a topic. Each Prometheus has a Nightingale of its own.
func nightingaleFlow(name string, e edition) flow {
	return flow{service: name, servers: []string{"pulsar", e.server}, start: func(ctx context.Context, env *environment) (running, error) {
		return startNightingale(ctx, env, name, e)
	}}
}

type nightingale struct {
	env        *environment
	name       string
	edition    edition
	topic      string
	service    *child
	prometheus *prometheus

	mu   sync.Mutex
	seen received
}

// received is what has arrived at the topic.
type received struct {
	samples, histograms, exemplars int64
	described, started             int64 // of them: with a type, with a start timestamp
	bytes                          int64
	duplicates, disordered         int64            // samples
	malformed                      int64            // messages
	last                           map[string]int64 // the latest timestamp of each series' samples
}

// metric is what the tail reads of the json format.
type metric struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Timestamp int64             `json:"timestamp"`
	Start     int64             `json:"start_timestamp"`
	Type      string            `json:"type"`
	Value     json.RawMessage   `json:"value"`
	Histogram *struct {
		Count json.RawMessage `json:"count"`
		Sum   json.RawMessage `json:"sum"`
	} `json:"histogram"`
	Exemplar json.RawMessage `json:"exemplar"`
	Stale    bool            `json:"stale"`
}

func startNightingale(ctx context.Context, env *environment, name string, e edition) (running, error) {
	n := &nightingale{
		env: env, name: name, edition: e,
		topic: "persistent://public/default/" + name + "-metrics-" + env.run,
		seen:  received{last: make(map[string]int64)},
	}
	binary, err := build(ctx, env, "nightingale")
	if err != nil {
		return n, err
	}
	listen, err := listenAddress(9201)
	if err != nil {
		return n, err
	}
	admin, err := listenAddress(9202)
	if err != nil {
		return n, err
	}
	n.service, err = spawn(env, name, binary, []string{
		"NIGHTINGALE_PULSAR_URL=" + env.servers["PULSAR_URL"],
		"NIGHTINGALE_TOPIC=" + n.topic,
		"NIGHTINGALE_HTTP_LISTEN=" + listen,
		"NIGHTINGALE_ADMIN_LISTEN=" + admin,
	})
	if err != nil {
		return n, err
	}
	if listen, err = n.service.address(ctx, "http"); err != nil {
		return n, err
	}
	if err := n.service.await(ctx, "not ready", 30*time.Second, func(ctx context.Context) error { return ready(ctx, admin) }); err != nil {
		return n, err
	}
	write := "http://" + listen + "/api/v1/write"
	if n.prometheus, err = startPrometheus(ctx, env, e, write, admin); err != nil {
		return n, err
	}
	if n.prometheus.curves == nil { // the one that draws them scrapes its own
		if err := env.curves.scrape(name, admin); err != nil {
			return n, err
		}
	}
	env.screen.note("%s  http://%s  scrapes itself and %s every second", e.name, n.prometheus.address, name)
	env.screen.note("%s  %s  metrics on http://%s/metrics", name, write, admin)
	env.screen.note("topic  %s  at %s", n.topic, env.servers["PULSAR_URL"])
	return n, nil
}

// ready asks a service's admin server.
func ready(ctx context.Context, admin string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/-/ready", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func (n *nightingale) watch(ctx context.Context) error {
	n.env.screen.status(n.status())
	return readTopic(ctx, n.env.servers["PULSAR_URL"], n.topic, n.receive)
}

// receive counts a message and shows it if there is room on the screen.
func (n *nightingale) receive(d *messaging.Delivery) {
	key, payload := d.Key, d.Payload
	var m metric
	err := json.Unmarshal(payload, &m)
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.seen
	s.bytes += int64(len(payload))
	switch {
	case err != nil:
		s.malformed++
		return
	case m.Exemplar != nil:
		s.exemplars++
	case m.Histogram != nil:
		s.histograms++
	case m.Value != nil:
		s.samples++
	default:
		s.malformed++
		return
	}
	if m.Type != "" {
		s.described++
	}
	if m.Start != 0 {
		s.started++
	}
	if m.Exemplar == nil {
		last, known := s.last[key]
		switch {
		case known && m.Timestamp == last:
			s.duplicates++
		case known && m.Timestamp < last:
			s.disordered++
		}
		s.last[key] = max(m.Timestamp, last)
	}
	n.env.screen.sample(n.name, func() string { return m.line(key) })
}

// line writes a message for people.
func (m metric) line(key string) string {
	value := string(m.Value)
	switch {
	case m.Stale:
		value = "stale"
	case m.Histogram != nil:
		value = fmt.Sprintf("histogram count %s sum %s", m.Histogram.Count, m.Histogram.Sum)
	case m.Exemplar != nil:
		value = "exemplar " + string(m.Exemplar)
	}
	series := m.Name
	if instance := m.Labels["instance"]; instance != "" {
		series += " " + instance
	}
	return fmt.Sprintf("%s  %-60s %s  key %.6s", time.UnixMilli(m.Timestamp).Format("15:04:05.000"), shorten(series, 60), strings.Trim(value, `"`), key)
}

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-3] + "..."
}

// status returns the rate line.
func (n *nightingale) status() func() string {
	began := time.Now()
	var before received
	at := began
	return func() string {
		n.mu.Lock()
		now := n.seen
		series := len(now.last)
		n.mu.Unlock()
		seconds := time.Since(at).Seconds()
		total := now.samples + now.histograms + now.exemplars
		rate := float64(total-before.samples-before.histograms-before.exemplars) / seconds
		text := fmt.Sprintf("%s  %.0f samples/s  %.0f KiB/s  %d in total  %d series  up %s",
			n.name, rate, float64(now.bytes-before.bytes)/seconds/1024, total, series, time.Since(began).Round(time.Second))
		before, at = now, time.Now()
		return text
	}
}

// verify compares what the topic's consumer has with what Prometheus says it sent.
func (n *nightingale) verify(ctx context.Context) ([]check, error) {
	n.env.screen.note("%s: scraping is off, waiting for the last samples", n.edition.name)
	sent, err := n.prometheus.quiet(ctx)
	if err != nil {
		return nil, err
	}
	// A consumer that is behind catches up; what does not come within the time is
	// lost, and shows as a difference.
	_ = n.service.await(ctx, "samples are missing at the topic's consumer", 30*time.Second, func(context.Context) error {
		if got := n.total(); got < sent.samples+sent.histograms+sent.exemplars {
			return fmt.Errorf("%d have arrived", got)
		}
		return nil
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	checks := []check{
		{"samples: sent by Prometheus = received from the topic", sent.samples, n.seen.samples},
		{"native histograms: sent = received", sent.histograms, n.seen.histograms},
		{"exemplars: sent = received", sent.exemplars, n.seen.exemplars},
		{"failed, by Prometheus' counters", 0, sent.failed},
		{"retried", 0, sent.retried},
		{"dropped", 0, sent.dropped},
		{"duplicates at the consumer", 0, n.seen.duplicates},
		{"out of order within a series", 0, n.seen.disordered},
		{"messages that are not the documented JSON", 0, n.seen.malformed},
		{"messages with the metric's type: some", 1, min(1, n.seen.described)},
	}
	if n.edition == currentPrometheus() { // only 2.0 has them
		checks = append(checks, check{"messages with a start timestamp: some", 1, min(1, n.seen.started)})
	}
	return checks, nil
}

func (n *nightingale) total() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen.samples + n.seen.histograms + n.seen.exemplars
}

// stop ends the sender before the receiver.
func (n *nightingale) stop(ctx context.Context) error {
	var err error
	if n.prometheus != nil {
		n.env.screen.note("stopping %s", n.edition.name)
		err = n.prometheus.stop(ctx)
	}
	if n.service != nil {
		n.env.screen.note("stopping %s", n.name)
		err = errors.Join(err, n.service.stop(ctx))
	}
	return err
}
