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

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
)

// nightingaleFlow shows a real Prometheus that remote-writes to Nightingale, which
// publishes to a topic. Each Prometheus has a Nightingale of its own.
func nightingaleFlow(name string, e edition) flow {
	return flow{service: name, binary: "nightingale", joins: e.joins, servers: []string{"pulsar", e.server}, start: func(ctx context.Context, env *environment) (running, error) {
		return startNightingale(ctx, env, name, e)
	}}
}

type nightingale struct {
	env        *environment
	name       string
	edition    edition
	topic      string
	service    *service
	prometheus *prometheus

	mu     sync.Mutex
	seen   received
	sent   outgoing
	caught bool // up, after the start: before that nobody knows what is missing
}

// received is what has arrived at the topic.
type received struct {
	samples, histograms, exemplars int64
	described, started             int64 // of them: with a type, with a start timestamp
	bytes                          int64
	duplicates, disordered         int64               // samples
	malformed                      int64               // messages
	last                           map[string]int64    // the latest timestamp of each series' samples
	exemplar                       map[string]exemplar // the latest one of each series
	repeated                       int64               // of all, those that had come before
	newest                         int64               // timestamp
}

type exemplar struct {
	timestamp int64
	text      string
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
		seen:  received{last: make(map[string]int64), exemplar: make(map[string]exemplar)},
	}
	binary, err := env.binaries.path(ctx, "nightingale")
	if err != nil {
		return n, err
	}
	listen, err := env.ports.listen(name, 9201)
	if err != nil {
		return n, err
	}
	admin, err := env.ports.listen(name, 9202)
	if err != nil {
		return n, err
	}
	n.service, err = startService(env, name, admin, binary, []string{
		"NIGHTINGALE_PULSAR_URL=" + env.servers["PULSAR_URL"],
		"NIGHTINGALE_TOPIC=" + n.topic,
		"NIGHTINGALE_HTTP_LISTEN=" + listen,
		"NIGHTINGALE_ADMIN_LISTEN=" + admin,
	})
	if err != nil {
		return n, err
	}
	if err := n.service.ready(ctx); err != nil {
		return n, err
	}
	write := "http://" + listen + "/api/v1/write"
	if n.prometheus, err = startPrometheus(ctx, env, e, write, admin); err != nil {
		return n, err
	}
	if c := n.prometheus.curves; c != nil {
		env.screen.Address(name, "curves", c.url())
	} else { // the one that draws them scrapes its own
		if err := env.curves.scrape(name, admin); err != nil {
			return n, err
		}
	}
	env.screen.Address(name, e.name, "http://"+n.prometheus.address)
	env.screen.Address(name, "remote write", write)
	env.screen.Address(name, "admin", "http://"+admin)
	env.screen.Address(name, "topic", n.topic+" at "+env.servers["PULSAR_URL"])
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
	n.env.screen.Status(n.name, n.figures)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.poll(ctx) })
	group.Go(func() error { return pulsar.Read(ctx, n.env.servers["PULSAR_URL"], n.topic, subscription, n.receive) })
	return group.Wait()
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
	s.newest = max(s.newest, m.Timestamp)
	if m.Exemplar != nil {
		if before := s.exemplar[key]; m.Timestamp < before.timestamp || m.Timestamp == before.timestamp && string(m.Exemplar) == before.text {
			s.repeated++
		} else {
			s.exemplar[key] = exemplar{m.Timestamp, string(m.Exemplar)}
		}
	} else {
		last, known := s.last[key]
		switch {
		case known && m.Timestamp == last:
			s.duplicates++
		case known && m.Timestamp < last:
			s.disordered++
		}
		if known && m.Timestamp <= last { // Prometheus sends a series in order: this was sent again
			s.repeated++
		}
		s.last[key] = max(m.Timestamp, last)
	}
	n.env.first.from(n.name)
	n.env.screen.Sample(n.name, func() string { return m.line(key) })
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

// figures are those of the panel.
func (n *nightingale) figures() display.Figures {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.seen
	f := display.Figures{
		Unit: "samples", From: n.edition.name, To: "its topic", Arrived: s.distinct(), Bytes: s.bytes, Twice: new(s.repeated),
		More: []string{fmt.Sprintf("%d series", len(s.last))},
	}
	if s.newest > 0 {
		f.Lag = time.Since(time.UnixMilli(s.newest))
		n.caught = n.caught || f.Lag < display.Overdue
	}
	if n.sent.known {
		f.Sent = new(max(n.sent.taken, f.Arrived))
		if n.caught {
			f.Missing = new(n.sent.missing(f.Arrived))
		}
	}
	return f
}

// distinct is how many have arrived at least once.
func (r *received) distinct() int64 { return r.samples + r.histograms + r.exemplars - r.repeated }

// verify compares what the topic's consumer has with what Prometheus says was acknowledged. Answers
// that told it to send samples again are no failure, and it sends again as every sender does.
func (n *nightingale) verify(ctx context.Context) ([]display.Check, error) {
	n.env.screen.Note("%s: scraping is off, waiting for the last samples", n.edition.name)
	if err := n.prometheus.quiet(ctx); err != nil {
		return nil, err
	}
	// A consumer that is behind catches up; what does not come within the time is
	// lost, and shows as a difference.
	var last sent
	var checks []display.Check
	err := n.service.await(ctx, "samples are missing at the topic's consumer", func(ctx context.Context) error {
		sent, err := n.prometheus.sent(ctx) // each time: a busy one may have more
		if err != nil {
			return err
		}
		last, checks = sent, n.compare(sent)
		if got := n.total(); sent.pending > 0 || got != sent.all() {
			return fmt.Errorf("%d were acknowledged, %d are pending, %d have arrived", sent.all(), sent.pending, got)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if checks == nil {
		return nil, err
	}
	if last.retried > 0 {
		n.env.screen.Note("%s: %d samples were sent again", n.edition.name, last.retried)
	}
	return checks, nil
}

// compare compares what has arrived with what was sent.
func (n *nightingale) compare(s sent) []display.Check {
	n.mu.Lock()
	defer n.mu.Unlock()
	checks := []display.Check{
		{What: "samples: acknowledged to Prometheus = received from the topic", Want: s.samples, Got: n.seen.samples},
		{What: "native histograms: acknowledged = received", Want: s.histograms, Got: n.seen.histograms},
		{What: "exemplars: acknowledged = received", Want: s.exemplars, Got: n.seen.exemplars},
		{What: "failed, by Prometheus' counters", Want: 0, Got: s.failed},
		{What: "dropped", Want: 0, Got: s.dropped},
		{What: "duplicates at the consumer", Want: 0, Got: n.seen.duplicates},
		{What: "out of order within a series", Want: 0, Got: n.seen.disordered},
		{What: "messages that are not the documented JSON", Want: 0, Got: n.seen.malformed},
		{What: "messages with the metric's type: some", Want: 1, Got: min(1, n.seen.described)},
	}
	if n.edition == currentPrometheus() { // only 2.0 has them
		checks = append(checks, display.Check{What: "messages with a start timestamp: some", Want: 1, Got: min(1, n.seen.started)})
	}
	return checks
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
		n.env.screen.Note("stopping %s", n.edition.name)
		err = n.prometheus.stop(ctx)
	}
	if n.service != nil {
		n.env.screen.Note("stopping %s", n.name)
		err = errors.Join(err, n.service.stop(ctx))
	}
	return err
}
