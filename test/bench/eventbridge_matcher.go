package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/corpus"
	"github.com/aviaryhq/aviary/test/stack"
)

// The version of event-ruler, and the digest of its jar and those it needs, see [stack.Stack.Jars].
const (
	ruler    = "2.1.0"
	rulerSum = "a10be4bc1ad579a00743d4612c8bd79b1306c1fc55597b3089b0ef6bc36d89460f802a3ccb285d3c23a993aa4591609bc8b746231fb99373f9ff71edaf74eec2"
)

//go:embed java/Matcher.java
var matcherProgram []byte

// matcherParts compare pkg/eventpattern with event-ruler, each on one thread, by events per second
// of that thread's CPU time: so that other work on the machine counts less. Garbage collection and
// compilation, which event-ruler does on other threads, do not count against it.
func matcherParts(ctx context.Context, r *runner) error {
	seconds := 1.0 // of CPU time that a turn takes
	if r.Quick {
		seconds /= 5
	}
	for _, c := range []struct {
		corpus.Corpus
		least float64 // events per second
	}{
		{corpus.Exact(1000), 800_000}, {corpus.Mixed(1000), 230_000}, {corpus.Mixed(10_000), 27_500},
	} {
		name := "matcher_" + strings.ReplaceAll(c.Name, "/", "_")
		if !r.Wants(name) {
			continue
		}
		// The rounds of the warm-up are for event-ruler's compiler.
		if err := compareMatchers(ctx, r, &workload.Part{Name: name, WarmUpRounds: 4, Targets: []workload.Target{
			{Name: name + "_per_s", Figure: "events_s", Of: "eventpattern", AtLeast: &c.least},
			{Name: name + "_vs_event_ruler", Figure: "events_s", Of: "eventpattern", Over: "event-ruler", AtLeast: new(5.0)},
		}}, c.Corpus, seconds); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return matcherGrowth(r, seconds)
}

// compareMatchers lets both match the same events. event-ruler has a process of its own.
func compareMatchers(ctx context.Context, r *runner, p *workload.Part, c corpus.Corpus, seconds float64) (err error) {
	m, err := newMatcher(c, seconds)
	if err != nil {
		return err
	}
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return err
	}
	jars, err := s.Jars(ctx, "event-ruler-"+ruler, "software.amazon.event.ruler:event-ruler:"+ruler, rulerSum)
	if err != nil {
		return err
	}
	dir, err := r.folder()
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "Matcher.java")
	if err := os.WriteFile(program, matcherProgram, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "java", "-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", "-cp", filepath.Join(jars, "*"), program)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close(), cmd.Wait()) }()
	if _, err := fmt.Fprintf(in, "%s\n\n%s\n\n", strings.Join(c.Rules, "\n"), bytes.Join(c.Events, []byte("\n"))); err != nil {
		return err
	}
	return r.compare(p, side{"eventpattern", m.match}, side{"event-ruler", func(int) (*load.Result, error) {
		if _, err := fmt.Fprintln(in, seconds); err != nil {
			return nil, err
		}
		var count, used float64
		var matches int
		if _, err := fmt.Fscanln(out, &count, &used, &matches); err != nil {
			return nil, err
		}
		if matches != m.matches {
			return nil, fmt.Errorf("%d matches, with pkg/eventpattern %d", matches, m.matches)
		}
		return m.result(count, used), nil
	}})
}

// matcherGrowth compares one exact rule with 100,000, and measures changes of an index.
func matcherGrowth(r *runner, seconds float64) error {
	if r.Wants("matcher_growth") {
		one, err1 := newMatcher(corpus.Exact(1), seconds)
		all, err2 := newMatcher(corpus.Exact(100_000), seconds)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := r.compare(&workload.Part{Name: "matcher_growth", Targets: []workload.Target{
			{Name: "matcher_100000_rules_vs_one", Figure: "events_s", Of: "100000", Over: "one", AtLeast: new(0.8)},
		}}, side{"one", one.match}, side{"100000", all.match}); err != nil {
			return err
		}
	}
	if !r.Wants("matcher_growth_add") {
		return nil
	}
	mixed := corpus.Mixed(10_000)
	more, err := newMatcher(mixed, seconds)
	if err != nil {
		return err
	}
	return r.compare(&workload.Part{Name: "matcher_growth_add", MaxRounds: 1, Targets: []workload.Target{
		{Name: "matcher_add_to_10000_ms", Figure: "add_max_ms", Of: "eventpattern", AtMost: new(10.0)},
	}}, side{"eventpattern", func(int) (*load.Result, error) { return more.add(mixed.Rules[:200]) }})
}

// matcher is pkg/eventpattern with a corpus.
type matcher struct {
	index   *eventpattern.Index[int]
	scratch eventpattern.Scratch
	ids     []int
	events  [][]byte
	seconds float64 // of CPU time that a turn takes
	matches int     // of the events, each matched once
}

func newMatcher(c corpus.Corpus, seconds float64) (*matcher, error) {
	m := &matcher{index: eventpattern.NewIndex[int](), events: c.Events, seconds: seconds}
	var err error
	m.index.Update(func(change *eventpattern.Change[int]) {
		for i, text := range c.Rules {
			p, wrong := eventpattern.Parse([]byte(text))
			if wrong != nil {
				err = wrong
				return
			}
			change.Set(i, p)
		}
	})
	return m, err
}

// match matches the events in turn for the CPU time of a turn.
func (m *matcher) match(int) (*load.Result, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var count, used float64
	var err error
	for began := threadTime(); used < m.seconds; used = (threadTime() - began).Seconds() {
		m.matches = 0
		for _, event := range m.events {
			if m.ids, err = m.index.Match(&m.scratch, m.ids[:0], event); err != nil {
				return nil, err
			}
			m.matches += len(m.ids)
		}
		count += float64(len(m.events))
	}
	return m.result(count, used), nil
}

func (m *matcher) result(count, used float64) *load.Result {
	perEvent := float64(m.matches) / float64(len(m.events))
	return &load.Result{Figures: map[string]float64{"events_s": count / used, "matches_per_event": perEvent}}
}

// add adds the rules to the index, one after the other.
func (m *matcher) add(rules []string) (*load.Result, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	times := load.NewHistogram()
	for i, text := range rules {
		began := threadTime()
		p, err := eventpattern.Parse([]byte(text))
		if err != nil {
			return nil, err
		}
		m.index.Set(-1-i, p)
		load.Record(times, threadTime()-began)
	}
	result := &load.Result{Figures: map[string]float64{}, Histograms: map[string]string{}}
	return result, result.AddHistogram("add", times)
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at) // every Linux has this clock
	return time.Duration(at.Nano())
}
