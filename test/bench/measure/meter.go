package measure

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Outcome is what a meter measured.
type Outcome struct {
	Messages int
	Seconds  float64
	P50, P99 float64 // latency percentiles in milliseconds; 0 if calls are not timed
	CPU      float64 // user and system time of the process, in seconds
	PeakMiB  float64 // largest resident size of the process
	Allocs   float64 // heap allocations
	Refused  int     // requests that had to be repeated
}

// Rate is the number of messages per second.
func (o Outcome) Rate() float64 { return float64(o.Messages) / o.Seconds }

// Meter measures the time between Start and Stop.
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
	m.Outcome.Allocs = float64(ms.Mallocs - m.mallocs)
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

// ResidentMiB returns the resident size of a process, and its peak, in MiB.
func ResidentMiB(pid int) (now, peak float64, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, err
	}
	status, err := p.NewStatus()
	return float64(status.VmRSS) / (1 << 20), float64(status.VmHWM) / (1 << 20), err
}
