package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// nightingaleScenario measures Nightingale under remote write on a real broker: what a sample
// costs, compared with vmagent and with the plain client, and what an outage of the broker does.
func nightingaleScenario(ctx context.Context, r *runner) error {
	r.scenario.Columns = []string{
		"samples_s", perCPU, "publish_msg_s", "peak_mib", "p50_ms", "p99_ms", "stored_bytes", "refused", "duplicated",
	}
	parts := remoteParts()
	exact := slices.ContainsFunc(parts, func(p remotePart) bool { return p.Name == r.Only })
	for _, p := range parts {
		if exact && p.Name != r.Only || !r.Wants(p.Name) {
			continue
		}
		if r.Quick {
			p.load.Count /= 5
		}
		if err := r.compare(&p.Part, r.remoteSides(ctx, p)...); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// remotePart is a part with a load of Nightingale.
type remotePart struct {
	workload.Part
	load        senders.Load
	format      string
	compression string // of messages; empty: the default
	other       string // side to compare with: vmagent, or client, the plain client; or outage
	partitions  []int  // of the topic, a side for each; 0: a topic without partitions
}

// outage, in place of a side to compare with, takes the broker away in the middle of the load.
const outage = "outage"

func remoteParts() []remotePart {
	v1, v2 := senders.Remote{}, senders.Remote{Version: 2}
	varied1, varied2 := senders.Remote{Varied: true}, senders.Remote{Varied: true, Version: 2}
	return []remotePart{
		usual("packed", "packed", "", "vmagent", v2, new(1.6)),
		usual("packed_of_1.0", "packed", "", "vmagent", v1, new(1.3)),
		usual("packed_varied", "packed", "", "vmagent", varied2, nil),
		usual("packed_varied_of_1.0", "packed", "", "vmagent", varied1, nil),
		usual("packed_zstd", "packed", "zstd", "vmagent", v2, nil),
		usual("packed_zstd_varied", "packed", "zstd", "vmagent", varied2, nil),
		usual("json", "json", "", "client", v1, new(.94)),
		growth("packed_1.0_2000x4", "packed", 1, 2000, 4, 200, "", ""),
		growth("packed_2000x4", "packed", 2, 2000, 4, 200, "packed_cpu_of_2.0_over_1.0", "packed_1.0_2000x4"),
		growth("packed_10000x4", "packed", 2, 10_000, 4, 40, "packed_cpu_10000_series_over_2000", "packed_2000x4"),
		growth("packed_100x4", "packed", 2, 100, 4, 1500, "", ""), // fewer samples: small messages take long
		growth("json_2000x4", "json", 1, 2000, 4, 50, "", ""),
		growth("json_500x64", "json", 1, 500, 64, 12, "", ""),
		usual("outage_packed", "packed", "", outage, v1, nil),
		usual("outage_json", "json", "", outage, v1, nil),
	}
}

// perCPU is the figure that most parts compare.
const perCPU = "samples_per_cpu_s"

func atMost(name, figure, of, over string, limit float64) workload.Target {
	return workload.Target{Name: name, Figure: figure, Of: of, Over: over, AtMost: &limit}
}

// usual returns a part with 4 connections, 400 requests each, and a topic without partitions. ratio
// is the limit of the ratio to the other side, or nil.
func usual(name, format, compression, other string, l senders.Remote, ratio *float64) remotePart {
	p := remotePart{Part: workload.Part{Name: name}, compression: compression, other: other, partitions: []int{0}}
	p.load, p.format = senders.Load{Send: senders.RemoteWrite, Remote: l, Callers: 4, Count: 400}, format
	switch other {
	case "vmagent":
		p.Targets = []workload.Target{
			{Name: name + "_vs_vmagent_per_cpu_s", Figure: perCPU, Of: "nightingale", Over: other, AtLeast: ratio},
		}
	case "client":
		p.Targets = []workload.Target{
			{Name: name + "_vs_raw_msg_s", Figure: "samples_s", Of: "nightingale", Over: other, OverFigure: "publish_msg_s", AtLeast: ratio},
		}
	}
	p.Targets = append(p.Targets,
		atMost(name+"_peak_mib", "peak_mib", "nightingale", "", 256),
		atMost(name+"_lost", "lost", "nightingale", "", 0),
		atMost(name+"_out_of_order", "out_of_order", "nightingale", "", 0),
	)
	if other == outage { // it ends by time, and what was on its way is sent again
		p.MaxRounds, p.load.Count = 1, 0
	} else {
		p.Targets = append(p.Targets, atMost(name+"_duplicates", "duplicated", "nightingale", "", 0))
	}
	return p
}

// growth returns a part that measures what the same load costs over more and more partitions. The
// target cheaper says that a sample takes no more CPU time than in the part than.
func growth(of, format string, version, series, connections, requests int, cheaper, than string) remotePart {
	name, l := "growth_"+of, senders.Remote{Series: series, Version: version}
	p := remotePart{Part: workload.Part{Name: name, MaxRounds: 1}, partitions: []int{1, 4, 16, 64}}
	p.load, p.format = senders.Load{Send: senders.RemoteWrite, Remote: l, Callers: connections, Count: requests}, format
	p.Targets = []workload.Target{
		atMost(name+"_cpu_64_partitions_over_4", perCPU, "4_partitions", "64_partitions", 1.4),
		atMost(name+"_64_partitions_peak_mib", "peak_mib", "64_partitions", "", 256),
	}
	if connections == 64 {
		p.Targets = append(p.Targets, atMost(name+"_64_partitions_p99_ms", "p99_ms", "64_partitions", "", 250))
	}
	for _, n := range p.partitions {
		if side := fmt.Sprintf("%d_partitions", n); cheaper != "" {
			p.Targets = append(p.Targets, atMost("growth_"+cheaper+"_"+side, perCPU, "growth_"+than+"/"+side, side, 1))
		}
	}
	return p
}

// remoteSides returns the sides of a part.
func (r *runner) remoteSides(ctx context.Context, p remotePart) (sides []side) {
	for _, n := range p.partitions {
		name, one := "nightingale", p
		if one.partitions = []int{n}; n > 0 {
			name = fmt.Sprintf("%d_partitions", n)
		}
		sides = append(sides, side{name, func(round int) (*load.Result, error) { return r.nightingale(ctx, one, round) }})
	}
	switch p.other {
	case outage:
		sides[0].run = func(round int) (*load.Result, error) { return r.outage(ctx, p, round) }
	case "vmagent":
		sides = append(sides, side{p.other, func(int) (*load.Result, error) { return r.vmagent(ctx, p.load) }})
	case "client":
		sides = append(sides, side{p.other, func(round int) (*load.Result, error) { return r.plainJSON(ctx, p.load, round) }})
	}
	return sides
}
