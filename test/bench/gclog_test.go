package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/bench/load"
)

// Lines of Java 17 and 25: of G1, of ZGC, of a thread dump, and one that is not complete yet.
const (
	warmUpLog = `[1.000s] Safepoint "G1CollectForAllocation", Time since last: 9 ns, Reaching safepoint: 1 ns, Cleanup: 1 ns, At safepoint: 1 ns, Total: 90000000 ns
`
	measuredLog = `[2.000s] GC(7) Pause Young (Normal) (G1 Evacuation Pause) 307M->51M(512M) 5.031ms
[2.000s] Safepoint "G1CollectForAllocation", Time since last: 9 ns, Reaching safepoint: 1 ns, Cleanup: 1 ns, At safepoint: 1 ns, Total: 6000000 ns
[2.100s] Safepoint "ThreadDump", Time since last: 9 ns, Reaching safepoint: 1 ns, Cleanup: 1 ns, At safepoint: 1 ns, Total: 80000000 ns
[2.200s] Safepoint "ZMarkStartYoung", Time since last: 9 ns, Reaching safepoint: 1 ns, At safepoint: 1 ns, Leaving safepoint: 1 ns, Total: 2000000 ns, Threads: 1 runnable, 99 total
[2.300s] Allocation Stall (pulsar-io-3-1) 12.500ms
[2.400s] Safepoint "G1PauseRemark", Time since`
)

func TestPausesOfACollectorAreCountedFromTheEndOfTheWarmUp(t *testing.T) {
	l, err := newGCLog()
	require.NoError(t, err)
	defer l.remove()
	write := func(text string) {
		f, err := os.OpenFile(l.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	write(warmUpLog)
	l.begin()
	write(warmUpLog)
	warm := load.Sample{Phase: "warmup", Values: map[string]float64{}}
	l.sample(warm)
	write(measuredLog)
	measured := load.Sample{Phase: "load", Values: map[string]float64{}}
	l.sample(measured)

	assert.Equal(t, map[string]float64{"pause_ms": 90, "stall_ms": 0}, warm.Values)
	assert.Equal(t, map[string]float64{"pause_ms": 8, "stall_ms": 12.5}, measured.Values)
	result := &load.Result{Figures: map[string]float64{}, Histograms: map[string]string{}}
	require.NoError(t, l.results(result))
	assert.InDelta(t, 2, result.Figures["pauses"], 0)
	assert.InDelta(t, 6, result.Figures["pause_max_ms"], 0.01)
	assert.InDelta(t, 2, result.Figures["pause_p50_ms"], 0.01)
	assert.InDelta(t, 1, result.Figures["stalls"], 0)
	assert.InDelta(t, 12.5, result.Figures["stall_max_ms"], 0.01)
	assert.Positive(t, result.Figures["pause_percent"])

	write(` last: 9 ns, Reaching safepoint: 1 ns, Cleanup: 1 ns, At safepoint: 1 ns, Total: 3000000 ns` + "\n")
	l.sample(measured)
	assert.InDelta(t, 3, measured.Values["pause_ms"], 0)
}
