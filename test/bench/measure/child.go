package measure

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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Piece is one measured run: which implementation does what to which topic.
type Piece struct {
	Kind       string  `json:"kind"` // a key of pieces.All()
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
	Rate       int     `json:"rate"`       // messages a second to offer; 0: as many as possible
	Events     int     `json:"events"`     // in each request; 0: 1
	First      int     `json:"first"`      // number of the first message; the last one's is below Count

	Remote  RemoteLoad `json:"remote"`  // of remote write
	Profile string     `json:"profile"` // prefix of profile files, optional
}

// Outcome is what a piece measured.
type Outcome struct {
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

// Rate is the number of messages per second.
func (o Outcome) Rate() float64 { return float64(o.Messages) / o.Seconds }

// Run runs p as a child process and returns what it measured.
func Run(ctx context.Context, p Piece) (Outcome, error) {
	spec, err := json.Marshal(p)
	if err != nil {
		return Outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Outcome{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-child", string(spec))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return Outcome{}, fmt.Errorf("%s: %w", p.Kind, err)
	}
	var o Outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return Outcome{}, fmt.Errorf("%s: %w", p.Kind, err)
	}
	o.PeakMiB = float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
	return o, nil
}

// RunChild is the child's side of Run.
func RunChild(ctx context.Context, spec string, pieces map[string]func(context.Context, Piece, *Meter) error) error {
	var p Piece
	if err := json.Unmarshal([]byte(spec), &p); err != nil {
		return err
	}
	f, ok := pieces[p.Kind]
	if !ok {
		return fmt.Errorf("unknown piece %q", p.Kind)
	}
	m := &Meter{Profile: p.Profile}
	err := f(ctx, p, m)
	if err = errors.Join(err, m.Finish()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m.Outcome)
}

// Meter brackets the measured part of a piece.
type Meter struct {
	Profile string // prefix of the profiles' names; empty: no profiles
	Outcome Outcome
	cpu     *os.File
	Began   time.Time
	used    float64
	mallocs uint64
}

// Start begins measuring: set-up before it does not count.
func (m *Meter) Start() error {
	if m.Profile != "" {
		f, err := os.Create(filepath.Clean(m.Profile + ".cpu.prof"))
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
	m.used = CPUSeconds()
	m.Began = time.Now()
	return nil
}

// Stop ends measuring after n messages.
func (m *Meter) Stop(n int) {
	m.Outcome.Seconds = time.Since(m.Began).Seconds()
	m.Outcome.CPU = CPUSeconds() - m.used
	m.Outcome.Messages = n
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.Outcome.Allocs = float64(ms.Mallocs-m.mallocs) / float64(max(n, 1))
	if m.cpu != nil {
		pprof.StopCPUProfile()
	}
}

// Latencies records percentiles of d.
func (m *Meter) Latencies(d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	ms := func(q float64) float64 { return d[min(int(q*float64(len(d))), len(d)-1)].Seconds() * 1000 }
	m.Outcome.P50, m.Outcome.P99 = ms(.5), ms(.99)
}

// Finish writes the allocation profile.
func (m *Meter) Finish() error {
	if m.cpu == nil {
		return nil
	}
	f, err := os.Create(filepath.Clean(m.Profile + ".allocs.prof"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close(), m.cpu.Close())
}

// CPUSeconds is the user and system time of this process so far.
func CPUSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	s := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return s(u.Utime) + s(u.Stime)
}

// More says whether a piece should go on after n messages since began.
func (p Piece) More(n int, began time.Time) bool {
	// The clock is looked at every 256 messages, to keep it off the hot path.
	return n < p.Count && (n%256 != 0 || time.Since(began).Seconds() < p.Seconds)
}

// Half is half the time of a timed piece. Of p.Seconds, which begin with the first message, the
// first half warms up: a Kafka that was just started compiles itself on both cores for half a
// minute.
func (p Piece) Half() time.Duration { return time.Duration(p.Seconds / 2 * float64(time.Second)) }

// ResidentMiB reads a resident size of a process: the present one (VmRSS) or its peak (VmHWM).
func ResidentMiB(pid int, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/%d/status", name, pid)
}
