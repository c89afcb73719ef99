package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	writers = 4 // connections of the load generator
)

// remoteBench is what the parts of the scenario share.
type remoteBench struct {
	*measure.Report
	dir         string // for binaries, logs and vmagent's data
	nightingale string
	vmagent     string
	near, far   *servers.Broker
	line        *proxy.Proxy
}

// nightingaleScenario measures the real binary under remote write, on a real broker:
// what a sample costs it, beside vmagent and the plain client, and what an outage of
// the broker does to it.
func nightingaleScenario(ctx context.Context, r *measure.Report) (err error) {
	b := &remoteBench{Report: r}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if b.near, err = servers.StartBroker(ctx, servers.Options{}); err != nil {
		return err
	}
	defer b.near.Stop()
	defer func() {
		if b.far != nil {
			b.line.Close()
			b.far.Stop()
		}
	}()
	r.Row("part\tsamples/s\tsamples/CPU s\tpeak MiB\trequest p50/p99 ms\tother: samples/s\tsamples/CPU s\tpeak MiB\tratio (median, min-max)")
	for _, part := range b.parts() {
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

type remotePart struct {
	name    string
	vmagent bool // it is compared with vmagent
	run     func(context.Context) error
}

// parts are those that are asked for: the one of that name, or those whose names
// contain it.
func (b *remoteBench) parts() []remotePart {
	parts := []remotePart{
		{"packed", true, b.packed("packed", measure.RemoteLoad{Version: 2}, "", 1.6)},
		{"packed_of_1.0", true, b.packed("packed_of_1.0", measure.RemoteLoad{}, "", 1.3)},
		{"packed_varied", true, b.packed("packed_varied", measure.RemoteLoad{Varied: true, Version: 2}, "", 0)},
		{"packed_varied_of_1.0", true, b.packed("packed_varied_of_1.0", measure.RemoteLoad{Varied: true}, "", 0)},
		{"packed_zstd", true, b.packed("packed_zstd", measure.RemoteLoad{Version: 2}, "zstd", 0)},
		{"packed_zstd_varied", true, b.packed("packed_zstd_varied", measure.RemoteLoad{Varied: true, Version: 2}, "zstd", 0)},
		{"json", false, b.json},
		{"growth", false, b.growth},
	}
	for _, format := range []string{"packed", "json"} {
		name := "outage_" + format
		parts = append(parts, remotePart{name, false, b.outage(name, format)})
	}
	named := func(p remotePart) bool { return p.name == b.Only }
	if one := slices.IndexFunc(parts, named); one >= 0 {
		return parts[one : one+1]
	}
	return slices.DeleteFunc(parts, func(p remotePart) bool { return !b.Wants(p.name) })
}

// prepare builds Nightingale and finds vmagent.
func (b *remoteBench) prepare(ctx context.Context) error {
	b.nightingale = filepath.Join(b.dir, "nightingale")
	if err := servers.Build(ctx, "nightingale", b.nightingale); err != nil {
		return err
	}
	if !slices.ContainsFunc(b.parts(), func(p remotePart) bool { return p.vmagent }) {
		return nil
	}
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return err
	}
	if err := s.Fetch(ctx, "victoria-metrics"); err != nil {
		return err
	}
	b.vmagent, err = exec.LookPath("vmagent")
	return err
}

// requests is how many each connection sends in one turn.
func (b *remoteBench) requests(n int) int {
	if b.Quick {
		return max(n/5, 20)
	}
	return n
}

// remoteRun is one run of Nightingale.
type remoteRun struct {
	format      string
	compression string // empty for the default
	load        measure.RemoteLoad
	senders     int
	requests    int // of each sender
	partitions  int // of the topic; 0: a topic without
	check       bool
	profile     string // name of its profiles, where some are written
}

// usual is a run of the usual size. The first round is checked.
func (b *remoteBench) usual(name, format string, l measure.RemoteLoad, round int) remoteRun {
	r := remoteRun{format: format, load: l, senders: writers, requests: b.requests(400), check: round == 0}
	if round == 0 {
		r.profile = name
	}
	return r
}

// packed compares the format packed with vmagent, which takes the same series over remote write 1.0.
// A wanted ratio of 0 is none.
func (b *remoteBench) packed(name string, l measure.RemoteLoad, compression string, ratio float64) func(context.Context) error {
	return func(ctx context.Context) error {
		var ours, theirs []servers.Turn
		if err := measure.InTurn(b.Rounds,
			measure.Into(&ours, func(round int) (servers.Turn, error) {
				run := b.usual(name, "packed", l, round)
				run.compression = compression
				return b.runNightingale(ctx, run)
			}),
			measure.Into(&theirs, func(int) (servers.Turn, error) {
				return b.runVMAgent(ctx, measure.RemoteLoad{Varied: l.Varied}, b.requests(400))
			}),
		); err != nil {
			return err
		}
		perCPU := measure.Each(ours, servers.Turn.PerCPU)
		ratios := measure.Ratios(perCPU, measure.Each(theirs, servers.Turn.PerCPU))
		b.compared(name, ours, theirs, ratios)
		b.Figure(name+"_samples_per_cpu_s", measure.Median(perCPU))
		b.Figure(name+"_stored_bytes_per_sample", measure.Median(measure.Each(ours, servers.Turn.StoredBytes)))
		if ratio > 0 {
			b.AtLeast(name+"_vs_vmagent_per_cpu_s", measure.Median(ratios), ratio)
		} else {
			b.Figure(name+"_vs_vmagent_per_cpu_s", measure.Median(ratios))
		}
		b.AtMost(name+"_peak_mib", measure.Most(measure.Each(ours, func(t servers.Turn) float64 { return t.Peak })), 256)
		b.correct(name, ours)
		return nil
	}
}

// json compares the rate of messages with what the plain client reaches.
func (b *remoteBench) json(ctx context.Context) error {
	var ours, theirs []servers.Turn
	if err := measure.InTurn(b.Rounds,
		measure.Into(&ours, func(round int) (servers.Turn, error) {
			return b.runNightingale(ctx, b.usual("json", "json", measure.RemoteLoad{}, round))
		}),
		measure.Into(&theirs, func(int) (servers.Turn, error) {
			o, err := measure.Run(ctx, measure.Piece{Kind: "raw-json", URL: b.near.Url, Topic: servers.Fresh("raw"), Callers: writers, Count: b.requests(400)})
			return servers.Turn{Load: o, CPU: o.CPU, Peak: o.PeakMiB}, err
		}),
	); err != nil {
		return err
	}
	ratios := measure.Ratios(measure.Each(ours, servers.Turn.Rate), measure.Each(theirs, servers.Turn.Rate))
	b.compared("json", ours, theirs, ratios)
	b.Figure("json_samples_per_cpu_s", measure.Median(measure.Each(ours, servers.Turn.PerCPU)))
	b.Figure("json_vs_kafka_adapter_per_cpu_s", measure.Median(measure.Each(ours, servers.Turn.PerCPU))/66_000)
	b.AtLeast("json_vs_raw_msg_s", measure.Median(ratios), .94)
	b.AtMost("json_peak_mib", measure.Most(measure.Each(ours, func(t servers.Turn) float64 { return t.Peak })), 256)
	b.correct("json", ours)
	return nil
}

// outage takes the broker away in the middle of the load.
func (b *remoteBench) outage(name, format string) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if b.far == nil {
			if b.line, err = proxy.New(); err != nil {
				return err
			}
			if b.far, err = servers.StartFarBroker(ctx, b.line, servers.Options{}); err != nil {
				return err
			}
		}
		topic := servers.Fresh("outage")
		s, err := b.start(ctx, remoteRun{format: format}, b.far, topic)
		if err != nil {
			return err
		}
		defer func() { _ = s.Stop() }()
		const before, after = 5 * time.Second, 10 * time.Second
		faults := make(chan error, 1)
		go func() {
			measure.Wait(ctx, before)
			b.line.Cut()
			measure.Wait(ctx, b.Outage)
			faults <- b.line.Restore()
		}()
		load, err := measure.Run(ctx, measure.Piece{Kind: "remote-write", URL: s.Write, Callers: writers, Seconds: (before + b.Outage + after).Seconds()})
		if err = errors.Join(err, <-faults); err != nil {
			return err
		}
		peak, err := s.Peak()
		if err != nil {
			return err
		}
		if err := s.Stop(); err != nil {
			return err
		}
		check, err := measure.Run(ctx, measure.Piece{Kind: "check-remote", URL: b.far.Url, Listener: b.far.Listener, Topic: topic, Callers: writers, Format: format})
		if err != nil {
			return err
		}
		b.Row("%s\t%.0f\t\t%.0f\t%.1f/%.1f\t(%s unavailable, %d requests refused, %d samples stored twice)", name, load.Rate(), peak, load.P50, load.P99, b.Outage, load.Refused, check.Duplicates)
		b.Figure(name+"_duplicates", float64(check.Duplicates))
		b.Figure(name+"_refused", float64(load.Refused))
		b.AtMost(name+"_peak_mib", peak, 256)
		b.AtMost(name+"_lost", float64(load.Messages-check.Distinct), 0)
		b.AtMost(name+"_out_of_order", float64(check.Disordered), 0)
		return nil
	}
}

func (b *remoteBench) compared(name string, ours, theirs []servers.Turn, ratios []float64) {
	of := func(turns []servers.Turn, f func(servers.Turn) float64) float64 {
		return measure.Median(measure.Each(turns, f))
	}
	peak := func(t servers.Turn) float64 { return t.Peak }
	b.Row("%s\t%.0f\t%.0f\t%.0f\t%.1f/%.1f\t%.0f\t%.0f\t%.0f\t%.3f (%.3f-%.3f)", name, of(ours, servers.Turn.Rate), of(ours, servers.Turn.PerCPU), of(ours, peak),
		of(ours, func(t servers.Turn) float64 { return t.Load.P50 }), of(ours, func(t servers.Turn) float64 { return t.Load.P99 }),
		of(theirs, servers.Turn.Rate), of(theirs, servers.Turn.PerCPU), of(theirs, peak), measure.Median(ratios), measure.Least(ratios), measure.Most(ratios))
	b.Figure(name+"_samples_s", of(ours, servers.Turn.Rate))
	b.Figure(name+"_other_samples_s", of(theirs, servers.Turn.Rate))
	b.Figure(name+"_other_samples_per_cpu_s", of(theirs, servers.Turn.PerCPU))
}

// correct reports what the topics' consumer has counted.
func (b *remoteBench) correct(name string, turns []servers.Turn) {
	var lost, disordered, duplicates int
	for _, t := range turns {
		if t.Checked {
			lost += t.Load.Messages - t.Check.Distinct
			disordered += t.Check.Disordered
			duplicates += t.Check.Duplicates
		}
	}
	b.AtMost(name+"_lost", float64(lost), 0)
	b.AtMost(name+"_out_of_order", float64(disordered), 0)
	b.AtMost(name+"_duplicates", float64(duplicates), 0)
}

func (b *remoteBench) runNightingale(ctx context.Context, r remoteRun) (t servers.Turn, err error) {
	topic := servers.Fresh(r.format)
	at := measure.Piece{Topic: topic, Partitions: r.partitions}
	if err := b.near.Create(ctx, at); err != nil {
		return t, err
	}
	s, err := b.start(ctx, r, b.near, topic)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if r.profile != "" && b.Profile != "" {
		done := make(chan error, 1)
		go func() { done <- s.Profiles(ctx, filepath.Join(b.Profile, "nightingale-"+r.profile)) }()
		defer func() { err = errors.Join(err, <-done) }()
	}
	if t, err = s.Load(ctx, measure.Piece{Remote: r.load, Callers: r.senders, Count: r.requests}, nil); err != nil {
		return t, err
	}
	if t.Stored, err = b.near.StoredBytes(ctx, at); err != nil {
		return t, err
	}
	if t.Stored /= float64(t.Load.Messages); !r.check {
		return t, nil
	}
	t.Checked = true
	t.Check, err = measure.Run(ctx, measure.Piece{
		Kind: "check-remote", URL: b.near.Url, Topic: topic, Callers: r.senders, Format: r.format, Remote: r.load,
	})
	return t, err
}

// start starts Nightingale and waits until it is ready.
func (b *remoteBench) start(ctx context.Context, r remoteRun, to *servers.Broker, topic string) (*servers.Server, error) {
	listen, admin, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	environ := []string{
		"NIGHTINGALE_PULSAR_URL=" + to.Url, "NIGHTINGALE_PULSAR_LISTENER_NAME=" + to.Listener, "NIGHTINGALE_TOPIC=" + topic,
		"NIGHTINGALE_FORMAT=" + r.format, "NIGHTINGALE_HTTP_LISTEN=" + listen, "NIGHTINGALE_ADMIN_LISTEN=" + admin,
	}
	if r.compression != "" {
		environ = append(environ, "NIGHTINGALE_PROFILE_COMPRESSION="+r.compression)
	}
	s, err := servers.Start(b.nightingale, filepath.Join(b.dir, "nightingale.log"), environ)
	if err != nil {
		return nil, err
	}
	s.Write, s.Admin = "http://"+listen+"/api/v1/write", "http://"+admin
	return s, s.Await(ctx, "http://"+admin+"/-/ready")
}

// runVMAgent has vmagent send the load on to a sink that throws it away, in this
// process.
func (b *remoteBench) runVMAgent(ctx context.Context, l measure.RemoteLoad, requests int) (t servers.Turn, err error) {
	var taken atomic.Int64 // bytes, decoded
	sink := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head, _ := io.ReadAll(io.LimitReader(r.Body, binary.MaxVarintLen64))
		size, _ := binary.Uvarint(head)
		_, _ = io.Copy(io.Discard, r.Body)
		taken.Add(int64(size))
		w.WriteHeader(http.StatusNoContent)
	})}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return t, err
	}
	go func() { _ = sink.Serve(ln) }()
	defer func() { err = errors.Join(err, sink.Close()) }()
	listen, _, err := servers.TwoPorts()
	if err != nil {
		return t, err
	}
	data := filepath.Join(b.dir, "vmagent")
	s, err := servers.Start(b.vmagent, filepath.Join(b.dir, "vmagent.log"), nil,
		"-httpListenAddr="+listen, "-remoteWrite.url=http://"+ln.Addr().String()+"/write", "-remoteWrite.tmpDataPath="+data, "-loggerLevel=ERROR")
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, s.Stop(), os.RemoveAll(data)) }()
	if err := s.Await(ctx, "http://"+listen+"/health"); err != nil {
		return t, err
	}
	s.Write = "http://" + listen + "/api/v1/write"
	// It answers before it has sent: what is left over is part of the work.
	t, err = s.Load(ctx, measure.Piece{Remote: l, Callers: writers, Count: requests}, func() {
		for last := int64(-1); last != taken.Load() && ctx.Err() == nil; {
			last = taken.Load()
			measure.Wait(ctx, 1500*time.Millisecond) // it sends at least once a second
		}
	})
	if sent := int64(writers * requests * len(measure.NewRemoteBodies(0, l).Template)); err == nil && taken.Load() < sent*9/10 {
		err = fmt.Errorf("vmagent has sent on %d of %d bytes", taken.Load(), sent)
	}
	return t, err
}
