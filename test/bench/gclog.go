package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
)

// gcLog is the garbage collection log of a broker's JVM, in a temporary folder. It counts the
// pauses of one turn at a time. Methods of nil do nothing.
type gcLog struct {
	file   string
	offset int                                // in the file, of what is not read yet
	began  time.Time                          // of what is counted
	times  map[string]*hdrhistogram.Histogram // pause: of all threads; stall: of single ones
}

func newGCLog() (*gcLog, error) {
	dir, err := os.MkdirTemp("", "bench-gc-")
	l := &gcLog{file: filepath.Join(dir, "gc.log")}
	l.reset()
	return l, err
}

// options returns the options that make the JVM write the log.
func (l *gcLog) options() string {
	return "-Xlog:gc,safepoint:file=" + l.file + ":uptime:filecount=0"
}

func (l *gcLog) remove() { _ = os.RemoveAll(filepath.Dir(l.file)) }

// begin counts pauses from now on.
func (l *gcLog) begin() {
	if l != nil {
		_ = l.read(map[string]float64{}) // results returns the error
		l.reset()
	}
}

func (l *gcLog) reset() {
	l.began = time.Now()
	l.times = map[string]*hdrhistogram.Histogram{"pause": load.NewHistogram(), "stall": load.NewHistogram()}
}

// read counts the lines that were added to the log since the last call, and adds pause_ms and
// stall_ms to values.
func (l *gcLog) read(values map[string]float64) error {
	text, err := os.ReadFile(l.file)
	if err != nil {
		return fmt.Errorf("garbage collection log of the broker: %w", err)
	}
	text = text[l.offset:]
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may not be complete
	l.offset += len(text)
	// The names exclude safepoints that are not of the collector, such as thread dumps. ZGC also stops
	// single threads that wait for memory: allocation stalls.
	line := regexp.MustCompile(`Safepoint "(?:Collect|G1|Gen|Parallel|Serial|Shenandoah|X|Z)\w*".* Total: *(\d+) ns|` +
		`Allocation Stall \(.*\) ([\d.]+ms)`)
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		name, took := "stall", m[2]
		if took == "" {
			name, took = "pause", m[1]+"ns"
		}
		d, err := time.ParseDuration(took)
		if err != nil {
			return err
		}
		load.Record(l.times[name], d)
		values[name+"_ms"] += d.Seconds() * 1000
	}
	return nil
}

// sample adds the pauses and stalls of a second to its values. The figures of the turn exclude the
// warm-up, and include the time in which the last messages arrive.
func (l *gcLog) sample(s load.Sample) {
	if l == nil {
		return
	}
	s.Values["pause_ms"], s.Values["stall_ms"] = 0, 0
	_ = l.read(s.Values) // results returns the error
	if s.Phase == load.PhaseWarmUp {
		l.reset()
	}
}

// results adds the figures of the pauses and stalls, such as pauses, pause_max_ms and
// pause_percent, and their histograms.
func (l *gcLog) results(into *load.Result) error {
	if l == nil {
		return nil
	}
	if err := l.read(map[string]float64{}); err != nil { // what came after the last sample
		return err
	}
	for name, h := range l.times {
		into.Figures[name+"s"] = float64(h.TotalCount())
		if err := into.AddHistogram(name, h); err != nil {
			return err
		}
	}
	pauses := l.times["pause"]
	into.Figures["pause_percent"] = pauses.Mean() * float64(pauses.TotalCount()) / float64(time.Since(l.began).Microseconds()) * 100
	return nil
}
