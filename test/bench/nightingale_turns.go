package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/snappy"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
)

// nightingale is a turn of Nightingale on the scenario's broker.
func (r *runner) nightingale(ctx context.Context, p remotePart, round int) (*load.Result, error) {
	c, err := r.cluster(ctx, "")
	if err != nil {
		return nil, err
	}
	return r.remoteTurn(ctx, c, p, round, func() error { return nil })
}

// outage is a turn of Nightingale on a broker of its own, which is unavailable in the middle.
func (r *runner) outage(ctx context.Context, p remotePart, round int) (*load.Result, error) {
	c, err := start(ctx, "outage", workload.Broker{}, true)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	const before, after = 5 * time.Second, 10 * time.Second
	p.load.Seconds = (before + r.Outage + after).Seconds()
	return r.remoteTurn(ctx, c, p, round, func() error {
		measure.Wait(ctx, before)
		c.line.Cut()
		measure.Wait(ctx, r.Outage)
		return c.line.Restore()
	})
}

// remoteTurn sends the load to Nightingale, which publishes to a new topic, and counts what
// arrives. It calls meanwhile when the load begins.
func (r *runner) remoteTurn(
	ctx context.Context, c *cluster, p remotePart, round int, meanwhile func() error,
) (_ *load.Result, err error) {
	topic := newTopic(c.namespace, p.format)
	if p.partitions[0] > 0 {
		if err := c.client.Topic(topic).Create(ctx, p.partitions[0]); err != nil {
			return nil, err
		}
	}
	environ := map[string]string{
		"PULSAR_URL": c.config.URL, "PULSAR_LISTENER_NAME": c.config.ListenerName, "TOPIC": topic, "FORMAT": p.format,
	}
	if p.compression != "" {
		environ["PROFILE_COMPRESSION"] = p.compression
	}
	s, err := r.service(ctx, "nightingale", "HTTP_LISTEN", environ)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	p.load.URL = "http://" + s.Address + "/api/v1/write"
	var o measure.Outcome
	var faults errgroup.Group
	faults.Go(meanwhile)
	err = r.profiled(ctx, s, fmt.Sprintf("nightingale-%s-%d", p.Name, p.partitions[0]), round, func() (err error) {
		o, err = s.Measure(ctx, p.load, nil)
		return err
	})
	if err = errors.Join(err, faults.Wait()); err != nil {
		return nil, err
	}
	stored, err := c.stored(ctx, []string{topic}, p.partitions[0])
	if err != nil {
		return nil, err
	}
	if err := s.Stop(); err != nil { // it publishes what it still has
		return nil, err
	}
	figures, err := countSamples(ctx, c.client, topic, p)
	if err != nil {
		return nil, err
	}
	figures["lost"] = float64(o.Messages) - figures["distinct"]
	figures["refused"], figures["stored_bytes"] = float64(o.Refused), float64(stored.bytes)/float64(o.Messages)
	return measured(o, "samples", figures), nil
}

// plainJSON is a turn of the plain client, which publishes such messages as Nightingale makes.
func (r *runner) plainJSON(ctx context.Context, p senders.Load, round int) (*load.Result, error) {
	c, err := r.cluster(ctx, "")
	if err != nil {
		return nil, err
	}
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	var messages []byte
	for connection := range p.Callers {
		for series := range p.Remote.PerRequest() {
			set, value := p.Remote.Sample(connection, series)
			others, err := json.Marshal(set.MatchLabels(false, "__name__"))
			if err != nil {
				return nil, err
			}
			messages = fmt.Appendf(messages, `{"name":%q,"labels":%s,"timestamp":%d,"value":%g}`+"\n",
				set.Get("__name__"), others, senders.FirstTime, value)
		}
	}
	file := filepath.Join(dir, "messages.jsonl")
	if err := os.WriteFile(file, messages, 0o600); err != nil {
		return nil, err
	}
	part := &workload.Part{Name: "json", Messages: p.Callers * p.Count * p.Remote.PerRequest(), Workload: workload.Workload{
		Topics: 1, ProducersPerTopic: 1, KeyDistributor: workload.KeyRoundRobin, PayloadFile: file, TestDurationMinutes: 10,
	}}
	return r.driver(ctx, c, part, workload.Side{Name: "client", Driver: "client"}).run(round)
}

// vmagent sends the load, in remote write 1.0, to vmagent, which sends it to a server of this
// process that discards it.
func (r *runner) vmagent(ctx context.Context, p senders.Load) (_ *load.Result, err error) {
	var received atomic.Int64 // bytes, before compression
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		head, _ := io.ReadAll(io.LimitReader(req.Body, binary.MaxVarintLen64))
		size, _ := snappy.DecodedLen(head)
		_, _ = io.Copy(io.Discard, req.Body) // a request that ends early is missing in the sum
		received.Add(int64(size))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer sink.Close()
	tools, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	if err := tools.Fetch(ctx, "victoria-metrics"); err != nil {
		return nil, err
	}
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	address, _, err := servers.TwoAddresses()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "vmagent")
	s, err := servers.Start("vmagent", data+".log", nil,
		"-httpListenAddr="+address, "-remoteWrite.url="+sink.URL+"/write", "-remoteWrite.tmpDataPath="+data, "-loggerLevel=ERROR")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop(), os.RemoveAll(data)) }()
	if err := s.Await(ctx, "http://"+address+"/health"); err != nil {
		return nil, err
	}
	p.URL, p.Remote.Version = "http://"+address+"/api/v1/write", 1
	o, err := s.Measure(ctx, p, func() { // it answers before it has sent on
		for last := int64(-1); last != received.Load() && ctx.Err() == nil; {
			last = received.Load()
			measure.Wait(ctx, 1500*time.Millisecond) // it sends at least once a second
		}
	})
	if err != nil {
		return nil, err
	}
	body, err := p.Remote.Bodies(0)(0)
	if err != nil {
		return nil, err
	}
	size, err := snappy.DecodedLen(body)
	if sent := int64(p.Callers * p.Count * size); err == nil && received.Load() < sent*9/10 {
		err = fmt.Errorf("vmagent sent %d of %d bytes", received.Load(), sent)
	}
	return measured(o, "samples", nil), err
}
