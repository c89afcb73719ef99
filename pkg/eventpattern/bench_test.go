package eventpattern_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/test/corpus"
)

func build(t testing.TB, c corpus.Corpus) *eventpattern.Index[int] {
	t.Helper()
	x := eventpattern.NewIndex[int]()
	x.Update(func(change *eventpattern.Change[int]) {
		for i, text := range c.Rules {
			change.Set(i, parse(t, text))
		}
	})
	return x
}

func parse(t testing.TB, text string) *eventpattern.Pattern {
	t.Helper()
	p, err := eventpattern.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func BenchmarkMatch(b *testing.B) {
	for _, c := range []corpus.Corpus{
		corpus.Exact(1), corpus.Exact(1000), corpus.Exact(100000), corpus.Mixed(1000), corpus.Mixed(10000), corpus.Weak(3000),
		corpus.Single(1000), corpus.Single(10000),
	} {
		b.Run(c.Name, func(b *testing.B) {
			x := build(b, c)
			var s eventpattern.Scratch
			var ids []int
			size, matches, n := 0, 0, 0
			least := time.Hour
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			for b.Loop() {
				began := threadTime(b)
				for _, event := range c.Events {
					n++
					size += len(event)
					var err error
					if ids, err = x.Match(&s, ids[:0], event); err != nil {
						b.Fatal(err)
					}
					matches += len(ids)
				}
				least = min(least, threadTime(b)-began)
			}
			b.ReportMetric(float64(least.Nanoseconds())/float64(len(c.Events)), "cpu-ns/event")
			b.ReportMetric(float64(size)/float64(n), "bytes/event")
			b.ReportMetric(float64(matches)/float64(n), "matches/event")
		})
	}
}

// threadTime is the CPU time of the calling thread: other processes may use the same processors.
func threadTime(t testing.TB) time.Duration {
	t.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

func BenchmarkSet(b *testing.B) {
	for _, c := range []corpus.Corpus{corpus.Exact(10000), corpus.Mixed(10000), corpus.Weak(10000)} {
		b.Run(c.Name, func(b *testing.B) {
			x := build(b, c)
			n := 0
			least := time.Hour
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				began := threadTime(b)
				x.Set(-1-n%100, parse(b, c.Rules[n%len(c.Rules)]))
				n++
				least = min(least, threadTime(b)-began)
			}
			b.ReportMetric(float64(least.Microseconds()), "cpu-us/set")
		})
	}
	for _, c := range []corpus.Corpus{corpus.Exact(10000), corpus.Mixed(10000)} {
		b.Run(fmt.Sprintf("all/%s", c.Name), func(b *testing.B) {
			for b.Loop() {
				build(b, c)
			}
		})
	}
}
