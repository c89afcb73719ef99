package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

// piece is one measured run: which implementation does what to which topic.
type piece struct {
	Kind       string  `json:"kind"` // a key of pieces()
	URL        string  `json:"url"`
	Far        string  `json:"far"`      // what the messages reach in the end, where that is elsewhere
	Listener   string  `json:"listener"` // the advertised listener to ask for
	Topic      string  `json:"topic"`
	Payload    int     `json:"payload"`    // bytes
	Count      int     `json:"count"`      // messages to move, at most
	Seconds    float64 `json:"seconds"`    // or until then, at most
	Callers    int     `json:"callers"`    // concurrent senders
	Format     string  `json:"format"`     // of the messages
	Partitions int     `json:"partitions"` // of the topic; 0: a topic without
	Topics     int     `json:"topics"`     // topics with names that begin with Topic; 0: Topic itself
	Rate       int     `json:"rate"`       // messages a second to offer; 0: as many as possible
	Type       string  `json:"type"`       // of the subscription; empty: shared
	Order      string  `json:"order"`      // that the consumer keeps
	Events     int     `json:"events"`     // in each request; 0: 1
	First      int     `json:"first"`      // number of the first message; the last one's is below Count

	Remote  remoteLoad `json:"remote"`  // of remote write
	Profile string     `json:"profile"` // prefix of profile files, optional
}

// outcome is what a piece measured.
type outcome struct {
	Messages int     `json:"messages"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ms"` // latency percentiles, where calls are timed
	P99      float64 `json:"p99_ms"`
	CPU      float64 `json:"cpu_s"`    // user and system time of the process while measuring
	PeakMiB  float64 `json:"peak_mib"` // largest resident size of the process
	Distinct int     `json:"distinct"` // consumers: distinct messages seen
	Allocs   float64 `json:"allocs"`   // heap allocations per message
	Rest     float64 `json:"rest_s"`   // from the last message sent until it was where it should be

	Refused    int `json:"refused"`    // senders: requests that had to be repeated
	Duplicates int `json:"duplicates"` // consumers: messages that came again
	Disordered int `json:"disordered"` // consumers: messages with a gap before them
}

func (o outcome) rate() float64 { return float64(o.Messages) / o.Seconds }

// runPiece runs p as a child process and returns what it measured.
func runPiece(ctx context.Context, p piece) (outcome, error) {
	spec, err := json.Marshal(p)
	if err != nil {
		return outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-child", string(spec))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return outcome{}, fmt.Errorf("%s: %w", p.Kind, err)
	}
	var o outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return outcome{}, fmt.Errorf("%s: %w", p.Kind, err)
	}
	o.PeakMiB = float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
	return o, nil
}

// runChild is the child's side of runPiece.
func runChild(ctx context.Context, spec string) error {
	var p piece
	if err := json.Unmarshal([]byte(spec), &p); err != nil {
		return err
	}
	f, ok := pieces()[p.Kind]
	if !ok {
		return fmt.Errorf("unknown piece %q", p.Kind)
	}
	m := &meter{piece: p}
	err := f(ctx, p, m)
	if err = errors.Join(err, m.finish()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m.outcome)
}

// meter brackets the measured part of a piece.
type meter struct {
	piece   piece
	outcome outcome
	cpu     *os.File
	began   time.Time
	used    float64
	mallocs uint64
}

// start begins measuring: set-up before it does not count.
func (m *meter) start() error {
	if m.piece.Profile != "" {
		f, err := os.Create(filepath.Clean(m.piece.Profile + ".cpu.prof"))
		if err != nil {
			return err
		}
		m.cpu = f
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.mallocs = ms.Mallocs
	m.used = cpuSeconds()
	m.began = time.Now()
	return nil
}

// stop ends measuring after n messages.
func (m *meter) stop(n int) {
	m.outcome.Seconds = time.Since(m.began).Seconds()
	m.outcome.CPU = cpuSeconds() - m.used
	m.outcome.Messages = n
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.outcome.Allocs = float64(ms.Mallocs-m.mallocs) / float64(max(n, 1))
	if m.cpu != nil {
		pprof.StopCPUProfile()
	}
}

// latencies records percentiles of d.
func (m *meter) latencies(d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	ms := func(q float64) float64 { return d[min(int(q*float64(len(d))), len(d)-1)].Seconds() * 1000 }
	m.outcome.P50, m.outcome.P99 = ms(.5), ms(.99)
}

// finish writes the allocation profile.
func (m *meter) finish() error {
	if m.cpu == nil {
		return nil
	}
	f, err := os.Create(filepath.Clean(m.piece.Profile + ".allocs.prof"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close(), m.cpu.Close())
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	s := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return s(u.Utime) + s(u.Stime)
}
