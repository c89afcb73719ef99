package main

import (
	"cmp"
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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	writers = 4 // connections of the load generator
	tick    = 100
)

// remoteBench is what the parts of the scenario share.
type remoteBench struct {
	*report
	dir         string // for binaries, logs and vmagent's data
	nightingale string
	vmagent     string
	near, far   *broker
	line        *proxy.Proxy
}

// nightingaleScenario measures the real binary under remote write, on a real broker:
// what a sample costs it, beside vmagent and the plain client, and what an outage of
// the broker does to it.
func nightingaleScenario(ctx context.Context, r *report) (err error) {
	b := &remoteBench{report: r}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if b.near, err = startBroker(ctx, 0); err != nil {
		return err
	}
	defer b.near.stop()
	defer func() {
		if b.far != nil {
			b.line.Close()
			b.far.stop()
		}
	}()
	r.row("part\tsamples/s\tsamples/CPU s\tpeak MiB\trequest p50/p99 ms\tother: samples/s\tsamples/CPU s\tpeak MiB\tratio (median, min-max)")
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
	varied := remoteLoad{Varied: true}
	parts := []remotePart{
		{"packed", true, b.packed("packed", remoteLoad{}, 900_000, 1.2)},
		{"packed_varied", true, b.packed("packed_varied", varied, 0, 0)},
		{"packed_v2", true, b.packedV2("packed_v2", remoteLoad{Version: 2}, "", 2)},
		{"packed_v2_of_1.0", true, b.packedV2("packed_v2_of_1.0", remoteLoad{}, "", 1.5)},
		{"packed_v2_varied", true, b.packedV2("packed_v2_varied", remoteLoad{Varied: true, Version: 2}, "", 2)},
		{"packed_v2_varied_of_1.0", true, b.packedV2("packed_v2_varied_of_1.0", varied, "", 1.5)},
		{"packed_v2_zstd", true, b.packedV2("packed_v2_zstd", remoteLoad{Version: 2}, "zstd", 0)},
		{"packed_v2_zstd_varied", true, b.packedV2("packed_v2_zstd_varied", remoteLoad{Varied: true, Version: 2}, "zstd", 0)},
		{"json", false, b.json},
		{"growth", false, b.growth},
	}
	for _, format := range []string{"packed", "json", "packed-v2"} {
		name := "outage_" + strings.ReplaceAll(format, "-", "_")
		parts = append(parts, remotePart{name, false, b.outage(name, format)})
	}
	named := func(p remotePart) bool { return p.name == b.only }
	if one := slices.IndexFunc(parts, named); one >= 0 {
		return parts[one : one+1]
	}
	return slices.DeleteFunc(parts, func(p remotePart) bool { return !b.wants(p.name) })
}

// prepare builds Nightingale and finds vmagent.
func (b *remoteBench) prepare(ctx context.Context) error {
	b.nightingale = filepath.Join(b.dir, "nightingale")
	if err := buildService(ctx, "nightingale", b.nightingale); err != nil {
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
	if b.quick {
		return max(n/5, 20)
	}
	return n
}

// remoteRun is one run of Nightingale.
type remoteRun struct {
	format      string
	compression string // empty for the default
	load        remoteLoad
	senders     int
	requests    int // of each sender
	partitions  int // of the topic; 0: a topic without
	check       bool
	profile     string // name of its profiles, where some are written
}

// turn is one measured run of a server under the load.
type turn struct {
	stored    float64 // bytes that the broker has of a sample; 0 where nothing was asked for
	load      outcome
	cpu, peak float64 // seconds; MiB
	check     outcome
	checked   bool
}

func (t turn) perCPU() float64 { return float64(t.load.Messages) / t.cpu }

func (t turn) rate() float64 { return t.load.rate() }

func (t turn) storedBytes() float64 { return t.stored }

// packed compares Nightingale's format packed with vmagent. A wanted figure of 0 is none.
func (b *remoteBench) packed(name string, l remoteLoad, rate, ratio float64) func(context.Context) error {
	return func(ctx context.Context) error {
		var ours, theirs []turn
		if err := inTurn(b.rounds,
			into(&ours, func(round int) (turn, error) { return b.runNightingale(ctx, b.usual(name, "packed", l, round)) }),
			into(&theirs, func(int) (turn, error) { return b.runVMAgent(ctx, l, b.requests(400)) }),
		); err != nil {
			return err
		}
		ratios := ratios(each(ours, turn.perCPU), each(theirs, turn.perCPU))
		b.compared(name, ours, theirs, ratios)
		b.figure(name+"_stored_bytes_per_sample", median(each(ours, turn.storedBytes)))
		if rate > 0 {
			b.atLeast(name+"_samples_per_cpu_s", median(each(ours, turn.perCPU)), rate)
			b.atLeast(name+"_vs_vmagent_per_cpu_s", median(ratios), ratio)
		} else {
			b.figure(name+"_samples_per_cpu_s", median(each(ours, turn.perCPU)))
			b.figure(name+"_vs_vmagent_per_cpu_s", median(ratios))
		}
		b.atMost(name+"_peak_mib", maxOf(each(ours, func(t turn) float64 { return t.peak })), 256)
		b.correct(name, ours)
		return nil
	}
}

// usual is a run of the usual size. The first round is checked.
func (b *remoteBench) usual(name, format string, l remoteLoad, round int) remoteRun {
	r := remoteRun{format: format, load: l, senders: writers, requests: b.requests(400), check: round == 0}
	if round == 0 {
		r.profile = name
	}
	return r
}

// packedV2 compares the format packed-v2 with vmagent, which takes the same series over
// remote write 1.0, and with packed under the same requests. A wanted ratio of 0 is none.
func (b *remoteBench) packedV2(name string, l remoteLoad, compression string, ratio float64) func(context.Context) error {
	return func(ctx context.Context) error {
		var ours, theirs, packed []turn
		if err := inTurn(b.rounds,
			into(&ours, func(round int) (turn, error) {
				run := b.usual(name, "packed-v2", l, round)
				run.compression = compression
				return b.runNightingale(ctx, run)
			}),
			into(&theirs, func(int) (turn, error) { return b.runVMAgent(ctx, remoteLoad{Varied: l.Varied}, b.requests(400)) }),
			into(&packed, func(int) (turn, error) { return b.runNightingale(ctx, b.usual("", "packed", l, 1)) }),
		); err != nil {
			return err
		}
		perCPU := each(ours, turn.perCPU)
		faster := ratios(perCPU, each(packed, turn.perCPU))
		smaller := ratios(each(ours, turn.storedBytes), each(packed, turn.storedBytes))
		ratios := ratios(perCPU, each(theirs, turn.perCPU))
		b.compared(name, ours, theirs, ratios)
		b.row("%s\tbeside packed: %.2f times the samples per CPU second; bytes stored per sample %.1f, packed %.1f: %.2f", name, median(faster),
			median(each(ours, turn.storedBytes)), median(each(packed, turn.storedBytes)), median(smaller))
		b.figure(name+"_samples_per_cpu_s", median(each(ours, turn.perCPU)))
		b.figure(name+"_vs_packed_per_cpu_s", median(faster))
		b.figure(name+"_stored_bytes_per_sample", median(each(ours, turn.storedBytes)))
		if ratio > 0 {
			b.atLeast(name+"_vs_vmagent_per_cpu_s", median(ratios), ratio)
		} else {
			b.figure(name+"_vs_vmagent_per_cpu_s", median(ratios))
		}
		b.atMost(name+"_stored_vs_packed", median(smaller), .5)
		b.atMost(name+"_peak_mib", maxOf(each(ours, func(t turn) float64 { return t.peak })), 256)
		b.correct(name, ours)
		return nil
	}
}

// json compares the rate of messages with what the plain client reaches.
func (b *remoteBench) json(ctx context.Context) error {
	var ours, theirs []turn
	if err := inTurn(b.rounds,
		into(&ours, func(round int) (turn, error) {
			return b.runNightingale(ctx, b.usual("json", "json", remoteLoad{}, round))
		}),
		into(&theirs, func(int) (turn, error) {
			o, err := runPiece(ctx, piece{Kind: "raw-json", URL: b.near.url, Topic: fresh("raw"), Callers: writers, Count: b.requests(400)})
			return turn{load: o, cpu: o.CPU, peak: o.PeakMiB}, err
		}),
	); err != nil {
		return err
	}
	ratios := ratios(each(ours, turn.rate), each(theirs, turn.rate))
	b.compared("json", ours, theirs, ratios)
	b.figure("json_samples_per_cpu_s", median(each(ours, turn.perCPU)))
	b.figure("json_vs_kafka_adapter_per_cpu_s", median(each(ours, turn.perCPU))/66_000)
	b.atLeast("json_vs_raw_msg_s", median(ratios), .85)
	b.atMost("json_peak_mib", maxOf(each(ours, func(t turn) float64 { return t.peak })), 256)
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
			if b.far, err = startFarBroker(ctx, b.line); err != nil {
				return err
			}
		}
		topic := fresh("outage")
		s, err := b.start(ctx, remoteRun{format: format}, b.far, topic)
		if err != nil {
			return err
		}
		defer func() { _ = s.stop() }()
		const before, after = 5 * time.Second, 10 * time.Second
		faults := make(chan error, 1)
		go func() {
			wait(ctx, before)
			b.line.Cut()
			wait(ctx, b.away)
			faults <- b.line.Restore()
		}()
		load, err := runPiece(ctx, piece{Kind: "remote-write", URL: s.write, Callers: writers, Seconds: (before + b.away + after).Seconds()})
		if err = errors.Join(err, <-faults); err != nil {
			return err
		}
		peak, err := s.peak()
		if err != nil {
			return err
		}
		if err := s.stop(); err != nil {
			return err
		}
		check, err := runPiece(ctx, piece{Kind: "check-remote", URL: b.far.url, Listener: b.far.listener, Topic: topic, Callers: writers, Format: format})
		if err != nil {
			return err
		}
		b.row("%s\t%.0f\t\t%.0f\t%.1f/%.1f\t(%s away, %d requests refused, %d samples stored twice)", name, load.rate(), peak, load.P50, load.P99, b.away, load.Refused, check.Duplicates)
		b.figure(name+"_duplicates", float64(check.Duplicates))
		b.figure(name+"_refused", float64(load.Refused))
		b.atMost(name+"_peak_mib", peak, 256)
		b.atMost(name+"_lost", float64(load.Messages-check.Distinct), 0)
		b.atMost(name+"_out_of_order", float64(check.Disordered), 0)
		return nil
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (b *remoteBench) compared(name string, ours, theirs []turn, ratios []float64) {
	of := func(turns []turn, f func(turn) float64) float64 { return median(each(turns, f)) }
	peak := func(t turn) float64 { return t.peak }
	b.row("%s\t%.0f\t%.0f\t%.0f\t%.1f/%.1f\t%.0f\t%.0f\t%.0f\t%.3f (%.3f-%.3f)", name, of(ours, turn.rate), of(ours, turn.perCPU), of(ours, peak),
		of(ours, func(t turn) float64 { return t.load.P50 }), of(ours, func(t turn) float64 { return t.load.P99 }),
		of(theirs, turn.rate), of(theirs, turn.perCPU), of(theirs, peak), median(ratios), minOf(ratios), maxOf(ratios))
	b.figure(name+"_samples_s", of(ours, turn.rate))
	b.figure(name+"_other_samples_s", of(theirs, turn.rate))
	b.figure(name+"_other_samples_per_cpu_s", of(theirs, turn.perCPU))
}

// correct reports what the topics' consumer has counted.
func (b *remoteBench) correct(name string, turns []turn) {
	var lost, disordered, duplicates int
	for _, t := range turns {
		if t.checked {
			lost += t.load.Messages - t.check.Distinct
			disordered += t.check.Disordered
			duplicates += t.check.Duplicates
		}
	}
	b.atMost(name+"_lost", float64(lost), 0)
	b.atMost(name+"_out_of_order", float64(disordered), 0)
	b.atMost(name+"_duplicates", float64(duplicates), 0)
}

func (b *remoteBench) runNightingale(ctx context.Context, r remoteRun) (t turn, err error) {
	topic := fresh(r.format)
	at := piece{Topic: topic, Partitions: r.partitions}
	if err := b.near.create(ctx, at); err != nil {
		return t, err
	}
	s, err := b.start(ctx, r, b.near, topic)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if r.profile != "" && b.profile != "" {
		done := make(chan error, 1)
		go func() { done <- s.profiles(ctx, filepath.Join(b.profile, "nightingale-"+r.profile)) }()
		defer func() { err = errors.Join(err, <-done) }()
	}
	if t, err = s.load(ctx, piece{Remote: r.load, Callers: r.senders, Count: r.requests}, nil); err != nil {
		return t, err
	}
	if t.stored, err = b.near.storedBytes(ctx, at); err != nil {
		return t, err
	}
	if t.stored /= float64(t.load.Messages); !r.check {
		return t, nil
	}
	t.checked = true
	t.check, err = runPiece(ctx, piece{
		Kind: "check-remote", URL: b.near.url, Topic: topic, Callers: r.senders, Format: r.format, Remote: r.load,
	})
	return t, err
}

// start starts Nightingale and waits until it is ready.
func (b *remoteBench) start(ctx context.Context, r remoteRun, to *broker, topic string) (*server, error) {
	listen, admin, err := twoPorts()
	if err != nil {
		return nil, err
	}
	environ := []string{
		"NIGHTINGALE_PULSAR_URL=" + to.url, "NIGHTINGALE_PULSAR_LISTENER_NAME=" + to.listener, "NIGHTINGALE_TOPIC=" + topic,
		"NIGHTINGALE_FORMAT=" + r.format, "NIGHTINGALE_HTTP_LISTEN=" + listen, "NIGHTINGALE_ADMIN_LISTEN=" + admin,
	}
	if r.compression != "" {
		environ = append(environ, "NIGHTINGALE_PROFILE_COMPRESSION="+r.compression)
	}
	s, err := startServer(b.nightingale, filepath.Join(b.dir, "nightingale.log"), environ)
	if err != nil {
		return nil, err
	}
	s.write, s.admin = "http://"+listen+"/api/v1/write", "http://"+admin
	return s, s.await(ctx, "http://"+admin+"/-/ready")
}

// runVMAgent has vmagent send the load on to a sink that throws it away, in this
// process.
func (b *remoteBench) runVMAgent(ctx context.Context, l remoteLoad, requests int) (t turn, err error) {
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
	listen, _, err := twoPorts()
	if err != nil {
		return t, err
	}
	data := filepath.Join(b.dir, "vmagent")
	s, err := startServer(b.vmagent, filepath.Join(b.dir, "vmagent.log"), nil,
		"-httpListenAddr="+listen, "-remoteWrite.url=http://"+ln.Addr().String()+"/write", "-remoteWrite.tmpDataPath="+data, "-loggerLevel=ERROR")
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, s.stop(), os.RemoveAll(data)) }()
	if err := s.await(ctx, "http://"+listen+"/health"); err != nil {
		return t, err
	}
	s.write = "http://" + listen + "/api/v1/write"
	// It answers before it has sent: what is left over is part of the work.
	t, err = s.load(ctx, piece{Remote: l, Callers: writers, Count: requests}, func() {
		for last := int64(-1); last != taken.Load() && ctx.Err() == nil; {
			last = taken.Load()
			wait(ctx, 1500*time.Millisecond) // it sends at least once a second
		}
	})
	if sent := int64(writers * requests * len(newRemoteBodies(0, l).template)); err == nil && taken.Load() < sent*9/10 {
		err = fmt.Errorf("vmagent has sent on %d of %d bytes", taken.Load(), sent)
	}
	return t, err
}

// server is a measured process.
type server struct {
	name, write, admin string

	cmd     *exec.Cmd
	ended   chan error
	stopped bool
}

func startServer(program, log string, environ []string, args ...string) (*server, error) {
	out, err := os.OpenFile(filepath.Clean(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	s := &server{name: filepath.Base(program), cmd: exec.Command(program, args...), ended: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = out, out, append(os.Environ(), environ...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is tied to the thread that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = out.Close() }()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.ended <- s.cmd.Wait()
		}
	}()
	return s, <-started
}

// stop asks the process to end and waits. Twice is fine.
func (s *server) stop() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return nil
	case <-time.After(40 * time.Second):
		return errors.Join(fmt.Errorf("%s did not stop", s.name), s.cmd.Process.Kill())
	}
}

// await polls url until it answers 200.
func (s *server) await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		wait(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%s is not ready", s.name), s.stop())
		}
	}
}

// load measures the process while it is sent the load that p says, remote write where it says none, and while rest lasts.
func (s *server) load(ctx context.Context, p piece, rest func()) (t turn, err error) {
	before, err := s.cpu()
	if err != nil {
		return t, err
	}
	p.Kind, p.URL = cmp.Or(p.Kind, "remote-write"), cmp.Or(p.URL, s.write)
	if t.load, err = runPiece(ctx, p); err != nil {
		return t, err
	}
	if rest != nil {
		rest()
	}
	after, err := s.cpu()
	if err != nil {
		return t, err
	}
	t.cpu = after - before
	t.peak, err = s.peak()
	return t, err
}

// profiles writes five seconds' CPU profile, which includes the generator's making of
// its requests, and what has been allocated by then.
func (s *server) profiles(ctx context.Context, prefix string) error {
	for _, p := range [][2]string{{"profile?seconds=5", ".cpu.prof"}, {"allocs", ".allocs.prof"}} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.admin+"/debug/pprof/"+p[0], nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Clean(prefix + p[1]))
		if err == nil {
			_, err = io.Copy(f, resp.Body)
			err = errors.Join(err, f.Close())
		}
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
	}
	return nil
}

// cpu is the process' user and system time so far, in seconds.
func (s *server) cpu() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("unexpected /proc/<pid>/stat")
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / tick, errors.Join(err1, err2)
}

// peak is the largest resident size of the process so far, in MiB.
func (s *server) peak() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/<pid>/status")
}

// twoPorts finds free addresses.
func twoPorts() (a, b string, err error) {
	one, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	two, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", errors.Join(err, one.Close())
	}
	return one.Addr().String(), two.Addr().String(), errors.Join(one.Close(), two.Close())
}
