package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
)

// gcLog is the garbage collection log of a broker's JVM, in a temporary folder.
type gcLog struct {
	file string
	line *regexp.Regexp // matches a pause in ns, or a stall in ms
}

func newGCLog() (*gcLog, error) {
	dir, err := os.MkdirTemp("", "bench-gc-")
	if err != nil {
		return nil, err
	}
	// The names exclude safepoints that are not of the collector, such as thread dumps. ZGC also stops
	// single threads that wait for memory: allocation stalls.
	line := regexp.MustCompile(`Safepoint "(?:Collect|G1|Gen|Parallel|Serial|Shenandoah|X|Z)\w*".* Total: *(\d+) ns|` +
		`Allocation Stall \(.*\) ([\d.]+)ms`)
	return &gcLog{file: filepath.Join(dir, "gc.log"), line: line}, nil
}

// options returns the options that make the JVM write the log.
func (l *gcLog) options() string {
	return "-Xlog:gc,safepoint:file=" + l.file + ":uptime:filecount=0"
}

func (l *gcLog) remove() { _ = os.RemoveAll(filepath.Dir(l.file)) }

// follow counts pauses from now on. It returns nil without a log.
func (l *gcLog) follow() *pauses {
	if l == nil {
		return nil
	}
	p := &pauses{log: l, stops: load.NewHistogram(), stalls: load.NewHistogram()}
	p.read()
	p.reset()
	return p
}

// pauses counts the pauses of one turn. It reads the log once a second. Methods of nil do nothing.
type pauses struct {
	log           *gcLog
	offset        int64     // in the log's file
	began         time.Time // of what is counted
	seconds       float64
	stopped       time.Duration           // sum of the pauses of all threads
	stops, stalls *hdrhistogram.Histogram // in microseconds
	err           error
}

func (p *pauses) reset() {
	p.began, p.seconds, p.stopped = time.Now(), 0, 0
	p.stops.Reset()
	p.stalls.Reset()
}

// read counts the lines that were added to the log since the last call. It returns how long all
// threads were stopped, and how long single threads were stalled.
func (p *pauses) read() (stopped, stalled time.Duration) {
	f, err := os.Open(filepath.Clean(p.log.file))
	if err != nil {
		p.err = cmp.Or(p.err, err)
		return 0, 0
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, p.offset, math.MaxInt64-p.offset))
	if err != nil {
		p.err = cmp.Or(p.err, err)
		return 0, 0
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may not be complete
	p.offset += int64(len(text))
	for _, m := range p.log.line.FindAllStringSubmatch(string(text), -1) {
		if ns, err := strconv.ParseInt(m[1], 10, 64); err == nil {
			load.Record(p.stops, time.Duration(ns))
			stopped += time.Duration(ns)
		}
		if ms, err := strconv.ParseFloat(m[2], 64); err == nil {
			d := time.Duration(ms * float64(time.Millisecond))
			load.Record(p.stalls, d)
			stalled += d
		}
	}
	p.stopped += stopped
	return stopped, stalled
}

// sample adds the pauses and stalls of a second to its values. The figures of the turn exclude the
// warm-up, and include the time in which the last messages arrive.
func (p *pauses) sample(s load.Sample) {
	if p == nil {
		return
	}
	stopped, stalled := p.read()
	s.Values["pause_ms"], s.Values["stall_ms"] = milliseconds(stopped), milliseconds(stalled)
	p.seconds = time.Since(p.began).Seconds()
	if s.Phase == load.PhaseWarmUp {
		p.reset()
	}
}

// results adds the figures of the pauses and stalls, such as pauses, pause_max_ms and
// pause_percent, and their histograms. It returns the first error of reading the log.
func (p *pauses) results(into *load.Result) error {
	if p == nil || into == nil {
		return nil
	}
	p.read() // what came after the last sample
	if p.err != nil {
		return fmt.Errorf("garbage collection log of the broker: %w", p.err)
	}
	for name, h := range map[string]*hdrhistogram.Histogram{"pause": p.stops, "stall": p.stalls} {
		into.Figures[name+"s"] = float64(h.TotalCount())
		if err := into.AddHistogram(name, h); err != nil {
			return err
		}
	}
	if p.seconds > 0 {
		into.Figures["pause_percent"] = p.stopped.Seconds() / p.seconds * 100
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
