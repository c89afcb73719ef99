package main

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/corpus"
	"github.com/aviaryhq/aviary/test/stack"
)

// The version of event-ruler, and the digest of its jar and those it needs, see [stack.Stack.Jars].
const (
	ruler    = "2.1.0"
	rulerSum = "a10be4bc1ad579a00743d4612c8bd79b1306c1fc55597b3089b0ef6bc36d89460f802a3ccb285d3c23a993aa4591609bc8b746231fb99373f9ff71edaf74eec2"
)

//go:embed java/Matcher.java
var javaSource embed.FS

const (
	matcherSeconds = 1.0 // of CPU time that a turn takes
	warmTurns      = 4   // of event-ruler, for its compiler
)

// matcherPart compares pkg/eventpattern with event-ruler, each on one thread, by events per second
// of that thread's CPU time: so that other work on the machine counts less. Garbage collection and
// compilation, which event-ruler does on other threads, do not count against it.
func matcherPart(ctx context.Context, r *measure.Report) error {
	dir, err := os.MkdirTemp("", "aviary-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	start, err := prepareRuler(ctx, dir)
	if err != nil {
		return err
	}
	seconds, rounds := matcherSeconds, r.Rounds
	if r.Quick {
		seconds, rounds = seconds/5, min(rounds, 3)
	}
	r.Row("rules\tevents/s\tevent-ruler\tratio\tmatches per event")
	for _, c := range []struct {
		corpus.Corpus
		floor float64 // that the issue asks for
	}{
		{corpus.Exact(1000), 800_000}, {corpus.Mixed(1000), 230_000}, {corpus.Mixed(10_000), 27_500},
	} {
		ours, theirs, perEvent, err := compareMatchers(start, c.Corpus, rounds, seconds)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		name := strings.ReplaceAll(c.Name, "/", "_")
		all := measure.Ratios(ours, theirs)
		r.Row("%s\t%.0f\t%.0f\t%.2f (%.2f-%.2f)\t%.2f", c.Name, measure.Median(ours), measure.Median(theirs), measure.Median(all), measure.Least(all), measure.Most(all), perEvent)
		r.Figure("event_ruler_"+name+"_per_s", measure.Median(theirs))
		r.AtLeast("matcher_"+name+"_per_s", measure.Median(ours), c.floor)
		r.AtLeast("matcher_"+name+"_vs_event_ruler", measure.Median(all), 5)
	}
	return matcherGrowth(r, rounds, seconds)
}

// matcherGrowth compares one exact rule with 100,000, and measures changes of an index.
func matcherGrowth(r *measure.Report, rounds int, seconds float64) error {
	var few, many []float64
	turn := func(m *matcher, into *[]float64) func(int) error {
		return func(int) error {
			rate, _, err := m.run(seconds)
			*into = append(*into, rate)
			return err
		}
	}
	one, err := newMatcher(corpus.Exact(1))
	if err != nil {
		return err
	}
	all, err := newMatcher(corpus.Exact(100_000))
	if err != nil {
		return err
	}
	if err := measure.InTurn(rounds, turn(one, &few), turn(all, &many)); err != nil {
		return err
	}
	r.Row("exact/1\t%.0f\nexact/100000\t%.0f", measure.Median(few), measure.Median(many))
	r.AtMost("matcher_slower_with_100000_rules_percent", 100*(1-measure.Median(measure.Ratios(many, few))), 20)

	mixed := corpus.Mixed(10_000)
	m, err := newMatcher(mixed)
	if err != nil {
		return err
	}
	var took []float64
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range 200 {
		began, err := threadSeconds()
		if err != nil {
			return err
		}
		p, err := eventpattern.Parse([]byte(mixed.Rules[i]))
		if err != nil {
			return err
		}
		m.index.Set(-1-i, p)
		now, err := threadSeconds()
		if err != nil {
			return err
		}
		took = append(took, 1000*(now-began))
	}
	r.Row("one more rule to 10,000\t%.3f ms, at most %.3f ms", measure.Median(took), measure.Most(took))
	r.AtMost("matcher_add_to_10000_ms", measure.Most(took), 10)
	return nil
}

// compareMatchers lets both match the same events in turn.
func compareMatchers(start startRuler, c corpus.Corpus, rounds int, seconds float64) (ours, theirs []float64, perEvent float64, err error) {
	m, err := newMatcher(c)
	if err != nil {
		return nil, nil, 0, err
	}
	fmt.Fprintf(os.Stderr, "bench: %s\n", c.Name)
	theirMatcher, err := start(c)
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() { err = errors.Join(err, theirMatcher.stop()) }()
	for range warmTurns {
		if _, _, err := theirMatcher.run(seconds); err != nil {
			return nil, nil, 0, err
		}
	}
	err = measure.InTurn(rounds, func(int) error {
		rate, matches, err := m.run(seconds)
		ours, perEvent = append(ours, rate), float64(matches)/float64(len(c.Events))
		return err
	}, func(int) error {
		rate, matches, err := theirMatcher.run(seconds)
		theirs = append(theirs, rate)
		if want := m.matches(); err == nil && matches != want {
			err = fmt.Errorf("event-ruler finds %d matches, pkg/eventpattern %d", matches, want)
		}
		return err
	})
	return ours, theirs, perEvent, err
}

// matcher is pkg/eventpattern with a corpus.
type matcher struct {
	index   *eventpattern.Index[int]
	scratch eventpattern.Scratch
	ids     []int
	events  [][]byte
}

func newMatcher(c corpus.Corpus) (*matcher, error) {
	m := &matcher{index: eventpattern.NewIndex[int](), events: c.Events}
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

// run returns events per second of CPU time, and the matches of one pass.
func (m *matcher) run(seconds float64) (rate float64, matches int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := threadSeconds()
	if err != nil {
		return 0, 0, err
	}
	for count := 0; ; {
		matches = 0
		for _, event := range m.events {
			if m.ids, err = m.index.Match(&m.scratch, m.ids[:0], event); err != nil {
				return 0, 0, err
			}
			matches += len(m.ids)
		}
		count += len(m.events)
		now, err := threadSeconds()
		if used := now - began; err != nil || used >= seconds {
			return float64(count) / used, matches, err
		}
	}
}

func (m *matcher) matches() (n int) {
	for _, event := range m.events {
		m.ids, _ = m.index.Match(&m.scratch, m.ids[:0], event)
		n += len(m.ids)
	}
	return n
}

// threadSeconds is the CPU time of the calling thread.
func threadSeconds() (float64, error) {
	var at unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at)
	return float64(at.Nano()) / 1e9, err
}

// rulerProcess is event-ruler with a corpus, in a process of its own.
type rulerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

type startRuler func(c corpus.Corpus) (*rulerProcess, error)

// prepareRuler fetches event-ruler and compiles the program that runs it.
func prepareRuler(ctx context.Context, dir string) (startRuler, error) {
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	jars, err := s.Jars(ctx, "event-ruler-"+ruler, "software.amazon.event.ruler:event-ruler:"+ruler, rulerSum)
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(dir, javaSource); err != nil {
		return nil, err
	}
	classpath := dir + ":" + filepath.Join(jars, "*")
	compile := exec.CommandContext(ctx, "javac", "-cp", classpath, "-d", dir, filepath.Join(dir, "java", "Matcher.java"))
	if out, err := compile.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("javac: %w: %s", err, out)
	}
	return func(c corpus.Corpus) (*rulerProcess, error) {
		rules, events := filepath.Join(dir, "rules"), filepath.Join(dir, "events")
		var lines strings.Builder
		for _, event := range c.Events {
			lines.Write(event)
			lines.WriteByte('\n')
		}
		err := errors.Join(os.WriteFile(rules, []byte(strings.Join(c.Rules, "\n")), 0o600), os.WriteFile(events, []byte(lines.String()), 0o600))
		if err != nil {
			return nil, err
		}
		return runRuler(exec.CommandContext(ctx, "java", "-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", "-cp", classpath, "Matcher", rules, events))
	}, nil
}

func runRuler(cmd *exec.Cmd) (*rulerProcess, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &rulerProcess{cmd, in, bufio.NewScanner(out)}
	if !p.out.Scan() || p.out.Text() != "ready" {
		return nil, errors.Join(fmt.Errorf("event-ruler did not start: %q", p.out.Text()), p.stop())
	}
	return p, nil
}

// run is that of a matcher.
func (p *rulerProcess) run(seconds float64) (rate float64, matches int, err error) {
	if _, err := fmt.Fprintln(p.in, seconds); err != nil {
		return 0, 0, err
	}
	if !p.out.Scan() {
		return 0, 0, errors.Join(errors.New("event-ruler ended"), p.out.Err())
	}
	var count, used float64
	if _, err := fmt.Sscan(p.out.Text(), &count, &used, &matches); err != nil {
		return 0, 0, fmt.Errorf("event-ruler: %q: %w", p.out.Text(), err)
	}
	return count / used, matches, nil
}

func (p *rulerProcess) stop() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}
