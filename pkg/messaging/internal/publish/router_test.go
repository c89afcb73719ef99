package publish

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

func TestRunsOfRecordsWithoutKey(t *testing.T) {
	const partitions, callers = 4, 4
	never := func(int) bool { return false }
	rt := router{routing: RouteKeyHash}
	counts, changes, last := [partitions]int{}, 0, [callers]int{}
	for i := range callers * runRecords * partitions {
		caller := i % callers
		got := rt.route(&record.Record{SpreadHint: caller}, partitions, never)
		counts[got]++
		if i >= callers && got != last[caller] {
			changes++
		}
		last[caller] = got
		if caller == callers-1 && i < callers*(runRecords-1) {
			assert.ElementsMatch(t, []int{0, 1, 2, 3}, last[:], "callers of different numbers do not share a partition")
		}
	}
	for _, n := range counts {
		assert.InDelta(t, callers*runRecords, n, callers*2, "evenly")
	}
	assert.LessOrEqual(t, changes, callers*partitions, "in runs")

	// A hint is any number, also the -1 of sources without partitions.
	for _, hint := range []int{-1, 1 << 40} {
		assert.Less(t, rt.route(&record.Record{SpreadHint: hint}, partitions, never), partitions)
	}
	full := func(i int) bool { return i != 2 }
	for caller := range runsAtOnce {
		assert.Equal(t, 2, rt.route(&record.Record{SpreadHint: caller}, partitions, full), "full queues are passed by")
	}
}
