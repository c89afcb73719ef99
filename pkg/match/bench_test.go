package match_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/pkg/match"
)

func build(t testing.TB, c corpus) *match.Index[int] {
	t.Helper()
	x := match.NewIndex[int]()
	x.Update(func(change *match.Change[int]) {
		for i, text := range c.rules {
			change.Set(i, parse(t, text))
		}
	})
	return x
}

func parse(t testing.TB, text string) *match.Pattern {
	t.Helper()
	p, err := match.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func BenchmarkMatch(b *testing.B) {
	for _, c := range []corpus{
		exactCorpus(1), exactCorpus(1000), exactCorpus(100000), mixedCorpus(1000), mixedCorpus(10000), weakCorpus(3000),
	} {
		b.Run(c.name, func(b *testing.B) {
			x := build(b, c)
			var s match.Scratch
			var ids []int
			size, matches, n := 0, 0, 0
			least := time.Hour
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			for b.Loop() {
				began := threadTime(b)
				for _, event := range c.events {
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
			b.ReportMetric(float64(least.Nanoseconds())/float64(len(c.events)), "cpu-ns/event")
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
	for _, c := range []corpus{exactCorpus(10000), mixedCorpus(10000), weakCorpus(10000)} {
		b.Run(c.name, func(b *testing.B) {
			x := build(b, c)
			n := 0
			least := time.Hour
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				began := threadTime(b)
				x.Set(-1-n%100, parse(b, c.rules[n%len(c.rules)]))
				n++
				least = min(least, threadTime(b)-began)
			}
			b.ReportMetric(float64(least.Microseconds()), "cpu-us/set")
		})
	}
	for _, c := range []corpus{exactCorpus(10000), mixedCorpus(10000)} {
		b.Run(fmt.Sprintf("all/%s", c.name), func(b *testing.B) {
			for b.Loop() {
				build(b, c)
			}
		})
	}
}
