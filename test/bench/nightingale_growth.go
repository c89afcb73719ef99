package main

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// remoteGrowth are the loads of the growth tables. Each sends about as many samples, but
// for those of many small messages, which would take long.
func (b *remoteBench) remoteGrowth() []struct {
	name string
	run  remoteRun
} {
	type named = struct {
		name string
		run  remoteRun
	}
	load := func(name, format string, version, series, senders, requests int) named {
		if b.Quick {
			requests = max(requests/5, 2)
		}
		return named{name, remoteRun{format: format, load: measure.RemoteLoad{Series: series, Version: version}, senders: senders, requests: requests}}
	}
	return []named{
		load("packed_1.0_2000x4", "packed", 1, 2000, 4, 200),
		load("packed_2000x4", "packed", 2, 2000, 4, 200),
		load("packed_10000x4", "packed", 2, 10_000, 4, 40),
		load("packed_100x4", "packed", 2, 100, 4, 1500),
		load("json_2000x4", "json", 1, 2000, 4, 50),
		load("json_500x64", "json", 1, 500, 64, 12),
	}
}

// growth measures what the same loads cost over more and more partitions.
func (b *remoteBench) growth(ctx context.Context) error {
	sizes := []int{1, 4, 16, 64}
	b.Row("growth\tpartitions: samples/CPU s, request p99 ms, peak MiB, stored bytes per sample")
	perCPU := map[string]map[int]float64{}
	for _, l := range b.remoteGrowth() {
		perCPU[l.name] = map[int]float64{}
		row := l.name
		for _, n := range sizes {
			run := l.run
			if run.partitions = n; n == 64 {
				run.profile = fmt.Sprintf("growth-%s-%d", l.name, n)
			}
			t, err := b.runNightingale(ctx, run)
			if err != nil {
				return err
			}
			row += fmt.Sprintf("\t%d: %.0f, %.0f, %.0f, %.1f", n, t.PerCPU(), t.Load.P99, t.Peak, t.Stored)
			prefix := fmt.Sprintf("growth_%s_%d_partitions_", l.name, n)
			perCPU[l.name][n] = t.PerCPU()
			b.Figure(prefix+"samples_per_cpu_s", t.PerCPU())
			b.Figure(prefix+"p99_ms", t.Load.P99)
			b.Figure(prefix+"peak_mib", t.Peak)
			b.Figure(prefix+"stored_bytes", t.Stored)
			if n == 64 {
				b.AtMost(prefix+"peak_mib", t.Peak, 256)
				if run.senders == 64 {
					b.AtMost(prefix+"p99_ms", t.Load.P99, 250)
				}
			}
		}
		b.Row("%s", row)
		b.AtMost("growth_"+l.name+"_cpu_64_partitions_over_4", perCPU[l.name][4]/perCPU[l.name][64], 1.4)
	}
	for _, n := range sizes {
		b.AtMost(fmt.Sprintf("growth_packed_cpu_10000_series_over_2000_%d_partitions", n), perCPU["packed_2000x4"][n]/perCPU["packed_10000x4"][n], 1)
		b.AtMost(fmt.Sprintf("growth_packed_cpu_of_2.0_over_1.0_%d_partitions", n), perCPU["packed_1.0_2000x4"][n]/perCPU["packed_2000x4"][n], 1)
	}
	return nil
}
