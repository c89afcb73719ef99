//go:build !race

package messaging_test

import (
	"cmp"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/history"
)

// The randomised test of publishers and consumers together. Each seed is a plan: what is published,
// consumed and broken meanwhile. An ordinary run takes modelSeeds. AVIARY_MODEL_SEEDS is a number
// of fresh seeds to run in their place. AVIARY_MODEL_SEED is one to replay with a trace of
// everything, AVIARY_MODEL_SEEDS times. AVIARY_MODEL_TRACES names a directory for the traces of the
// seeds that fail.
const (
	seedsVariable  = "AVIARY_MODEL_SEEDS"
	seedVariable   = "AVIARY_MODEL_SEED"
	tracesVariable = "AVIARY_MODEL_TRACES"
)

func TestModel(t *testing.T) {
	t.Parallel()
	n, fresh := variable(t, seedsVariable)
	if one, replay := variable(t, seedVariable); replay {
		// What comes of a seed depends on the scheduler, too: several runs of one show more.
		all := runSeeds(repeated(one, max(n, 1)))
		t.Log(all[0].trace())
		report(t, all)
		return
	}
	if fresh {
		report(t, runSeeds(freshSeeds(t, n)))
		return
	}
	report(t, confirmed(t, runSeeds(slices.Values(modelSeeds)), func(seed uint64) []modelOutcome {
		return runSeeds(repeated(seed, 10))
	}))
}

func repeated(seed, n uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for range n {
			if !yield(seed) {
				return
			}
		}
	}
}

// freshSeeds are n seeds in a row, others in each run.
func freshSeeds(t *testing.T, n uint64) iter.Seq[uint64] {
	t.Helper()
	first := uint64(time.Now().UnixNano())%1_000_000*1000 + 1
	t.Logf("seeds %d to %d", first, first+n-1)
	return func(yield func(uint64) bool) {
		for seed := first; seed < first+n; seed++ {
			if !yield(seed) {
				return
			}
		}
	}
}

// confirmed repeats the seeds that failed, and takes those for passed that do not fail again: in
// one of some hundreds the client underneath meets one of its own races (docs/library.md), which
// is for the long form to look at. What the library breaks fails a seed in a good part of its runs.
func confirmed(t *testing.T, all []modelOutcome, repeat func(seed uint64) []modelOutcome) []modelOutcome {
	t.Helper()
	for i, out := range all {
		if len(out.violations) == 0 {
			continue
		}
		t.Logf("seed %d (%s) failed, and is repeated: %s", out.plan.seed, out.summary(), out.violations[0])
		again := repeat(out.plan.seed)
		if !slices.ContainsFunc(again, func(o modelOutcome) bool { return len(o.violations) > 0 }) {
			all[i] = again[0]
		}
	}
	return all
}

func variable(t *testing.T, name string) (uint64, bool) {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, name)
	return n, true
}

// seedsAtOnce is how many seeds run at a time on each processor: they wait most of the time.
const seedsAtOnce = 16

func runSeeds(list iter.Seq[uint64]) []modelOutcome {
	seeds := make(chan uint64)
	var mu sync.Mutex
	var all []modelOutcome
	var wg sync.WaitGroup
	for range seedsAtOnce * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range seeds {
				out := runModel(newModelPlan(seed), newWireModel)
				mu.Lock()
				all = append(all, out)
				mu.Unlock()
			}
		})
	}
	for seed := range list {
		seeds <- seed
	}
	close(seeds)
	wg.Wait()
	return all
}

// report fails the test for each seed that broke a promise: in full for a few, and in a line for
// the others.
func report(t *testing.T, all []modelOutcome) {
	t.Helper()
	const full = 2
	slices.SortFunc(all, func(a, b modelOutcome) int { return cmp.Compare(a.plan.seed, b.plan.seed) })
	failed, slowest := 0, all[0]
	var sum time.Duration
	for _, out := range all {
		sum += out.took
		if out.took > slowest.took {
			slowest = out
		}
		if len(out.violations) == 0 {
			continue
		}
		failed++
		if dir := os.Getenv(tracesVariable); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.txt", out.plan.seed)), []byte(out.trace()), 0o600))
		}
		if failed <= full {
			t.Error(out.trace())
		} else {
			t.Errorf("seed %d (%s): %s", out.plan.seed, out.summary(), out.violations[0])
		}
	}
	if failed > 0 {
		t.Logf("replay a seed with %s=SEED %s=24 go test -count 1 -run '^%s$' -v ./pkg/messaging; "+
			"add it to the list of seeds in pkg/messaging/model_seeds_test.go together with the fix", seedVariable, seedsVariable, t.Name())
	}
	t.Logf("%d seeds, %d failed; a seed takes %s, the slowest, %d, %s", len(all), failed,
		(sum / time.Duration(len(all))).Round(time.Millisecond), slowest.plan.seed, slowest.took.Round(time.Millisecond))
}

// modelOutcome is what came of one seed.
type modelOutcome struct {
	plan       modelPlan
	violations []history.Violation
	events     []string
	took       time.Duration
}

// summary is the dimensions that matter most.
func (o modelOutcome) summary() string {
	p := o.plan
	s := fmt.Sprintf("%s, order %s, %d consumers", p.consumer.Type, p.consumer.Order, p.consumers)
	if p.async {
		s += ", async"
	}
	if p.batched() {
		s += ", batches"
	}
	if p.exclusive {
		s += ", exclusive publishers"
	}
	for _, f := range p.faults {
		s += ", " + string(f.kind)
	}
	return s
}

func (o modelOutcome) trace() string {
	var b strings.Builder
	fmt.Fprintf(&b, "replay with %s=%d\n%s\n", seedVariable, o.plan.seed, o.plan)
	for _, v := range o.violations {
		fmt.Fprintf(&b, "BROKEN %s\n", v)
	}
	for _, e := range o.events {
		b.WriteString("    " + e + "\n")
	}
	return b.String()
}
