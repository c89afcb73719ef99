//go:build !race

package messaging_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// modelSeeds are the seeds of an ordinary run of TestModel: those that once failed, and as few
// others as have a plan of each kind.
var modelSeeds = []uint64{
	397619170, 555232001, // failed once
	11, 38, 63, 171, 303, 695, 887, 1023, 1064, 1318, 1371, 2784, 2873,
}

// modelBrokerSeeds are those of TestModelOnTheBroker: the types of subscriptions and the faults
// that the real broker has.
var modelBrokerSeeds = []uint64{1, 2, 3}

// kinds names all that is in a plan and should be tested.
func (p modelPlan) kinds() []string {
	c, h := p.consumer, p.handlers
	out := []string{
		fmt.Sprintf("%s consumers in order %s", c.Type, c.Order),
		fmt.Sprintf("%d consumers, %s", p.consumers, c.Type),
		fmt.Sprintf("async %t, %s", p.async, c.Type),
		fmt.Sprintf("%d partitions", p.partitions),
		fmt.Sprintf("batches %t, batch index %t", p.batched(), c.AckBatchIndex),
		fmt.Sprintf("at most %d attempts, in place %t", c.Retry.MaxAttempts, c.Retry.InPlace),
	}
	for name, is := range map[string]bool{
		"restart": p.restart > 0, "restart, exclusive publishers": p.restart > 0 && p.exclusive,
		"only some hang": p.hangsAlone(), "handlers that are slow": h.slow > 0, "handlers that hang": h.hang > 0,
		"handlers that fail": h.fail > 0, "handlers that ask for a delay": h.later > 0, "handlers that reject": h.reject > 0,
	} {
		if is {
			out = append(out, name)
		}
	}
	for _, s := range p.publishers {
		switch {
		case s.raw:
			out = append(out, "batches of another client")
		case p.exclusive:
			out = append(out, "exclusive publisher "+string(s.profile.Admission))
		default:
			out = append(out, fmt.Sprintf("publisher %s, %s", s.profile.Admission, s.profile.Routing),
				fmt.Sprintf("group commit %t, compression %s", s.profile.GroupCommit, s.profile.Compression))
			if s.earlyEnds > 0 {
				out = append(out, "contexts that end early")
			}
		}
	}
	for _, f := range p.faults {
		out = append(out, fmt.Sprintf("%s, async %t", f.kind, p.async))
		if p.exclusive {
			out = append(out, fmt.Sprintf("%s, exclusive publishers", f.kind))
		}
		if c.Type != messaging.Shared && p.consumers > 1 {
			out = append(out, fmt.Sprintf("%s, several consumers in order", f.kind))
		}
	}
	return out
}

// The kinds that thousands of seeds have are those of modelSeeds, too: a change of the plans makes
// other seeds of them.
func TestModelSeedsHaveEachKindOfPlan(t *testing.T) {
	t.Parallel()
	const seeds = 3000
	left := make(map[string]bool)
	plans := make([][]string, seeds)
	for seed := range plans {
		plans[seed] = newModelPlan(uint64(seed)).kinds()
		for _, kind := range plans[seed] {
			left[kind] = true
		}
	}
	for _, seed := range modelSeeds {
		for _, kind := range newModelPlan(seed).kinds() {
			delete(left, kind)
		}
	}
	missing := slices.Sorted(maps.Keys(left))
	var more []int
	for len(left) > 0 {
		most, best := 0, 0
		for seed, kinds := range plans {
			n := 0
			for _, kind := range slices.Compact(slices.Sorted(slices.Values(kinds))) {
				if left[kind] {
					n++
				}
			}
			if n > most {
				most, best = n, seed
			}
		}
		more = append(more, best)
		for _, kind := range plans[best] {
			delete(left, kind)
		}
	}
	assert.Empty(t, missing, "no seed has them: add %v to modelSeeds", more)
}
