package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// growthSeconds is the length of one measured piece, growthRounds the turns of each size.
const (
	growthSeconds = 2.5
	growthRounds  = 2
	idleSeconds   = 10
	idleSize      = 1000
)

// growthRate is the load, in messages a second, under which the cost of a record is compared: a
// sender that sends as fast as it can makes large entries of a backlog, and so hides the cost.
const growthRate = 40_000

// growth measures what the same load costs over more and more partitions, and topics, and what
// partitions cost while nothing is published.
func growth(ctx context.Context, r *measure.Report, b *servers.Broker) error {
	if !r.Wants("growth_partitions") && !r.Wants("growth_topics") && !r.Wants("growth_idle") {
		return nil
	}
	r.Row("part\tsize\tload\tours msg/s\tplain msg/s\tours CPU µs/msg\tplain\tours entries/s\tplain\tours peak MiB\tplain")
	if r.Wants("growth_partitions") {
		for _, load := range []string{"steady", "full"} {
			cpu := map[int]float64{}
			for _, n := range []int{1, 4, 16, 64, 256} {
				ours, err := grow(ctx, r, b, load, "partitions", n)
				if err != nil {
					return err
				}
				cpu[n] = ours
			}
			r.AtMost("growth_"+load+"_cpu_64_partitions_over_4", cpu[64]/cpu[4], 1.3)
			r.AtMost("growth_"+load+"_cpu_256_partitions_over_4", cpu[256]/cpu[4], 1.6)
		}
	}
	if r.Wants("growth_topics") {
		for _, n := range []int{1, 10, 100} {
			if _, err := grow(ctx, r, b, "steady", "topics", n); err != nil {
				return err
			}
		}
	}
	if r.Wants("growth_idle") {
		return growthIdle(ctx, r, b)
	}
	return nil
}

// grow measures one size, ours and the plain client in turn, and returns our CPU time per record
// in microseconds.
func grow(ctx context.Context, r *measure.Report, b *servers.Broker, load, what string, n int) (float64, error) {
	type figures struct{ rate, cpu, entries, peak []float64 }
	var sides [2]figures
	rounds := min(r.Rounds, growthRounds)
	for round := range rounds {
		for _, side := range [2]int{round % 2, 1 - round%2} {
			base := servers.Fresh("growth")
			p := measure.Piece{Kind: [2]string{"growth-ours", "growth-plain"}[side], URL: b.Url, Topic: base, Payload: 200, Count: 1 << 40, Seconds: growthSeconds}
			if load == "steady" {
				p.Rate = growthRate
			}
			if what == "partitions" {
				p.Partitions = n
			} else {
				p.Topics = n
			}
			if r.Profile != "" && round == 0 {
				p.Profile = r.Profile + "/growth-" + load + "-" + what + "-" + strconv.Itoa(n) + "-" + p.Kind
			}
			if err := b.Create(ctx, p); err != nil {
				return 0, err
			}
			o, err := measure.Run(ctx, p)
			if err != nil {
				return 0, err
			}
			entries, err := b.Entries(ctx, p)
			if err != nil {
				return 0, err
			}
			f := &sides[side]
			f.rate = append(f.rate, o.Rate())
			f.cpu = append(f.cpu, o.CPU/float64(o.Messages)*1e6)
			// The warm-up's entries count, and so do its records.
			f.entries = append(f.entries, float64(entries)*o.Rate()/float64(o.Messages+pieces.GrowthWarmUp))
			f.peak = append(f.peak, o.PeakMiB)
			if err := b.Remove(ctx, p); err != nil {
				return 0, err
			}
		}
	}
	ours, plain := sides[0], sides[1]
	r.Row("growth\t%d %s\t%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f", n, what, load, measure.Median(ours.rate), measure.Median(plain.rate),
		measure.Median(ours.cpu), measure.Median(plain.cpu), measure.Median(ours.entries), measure.Median(plain.entries), measure.Median(ours.peak), measure.Median(plain.peak))
	for name, f := range map[string]figures{"ours": ours, "plain": plain} {
		prefix := fmt.Sprintf("growth_%s_%d_%s_%s_", load, n, what, name)
		r.Figure(prefix+"msg_s", measure.Median(f.rate))
		r.Figure(prefix+"cpu_us", measure.Median(f.cpu))
		r.Figure(prefix+"entries_s", measure.Median(f.entries))
		r.Figure(prefix+"peak_mib", measure.Median(f.peak))
	}
	return measure.Median(ours.cpu), nil
}

// growthIdle measures publishers of many partitions that publish nothing.
func growthIdle(ctx context.Context, r *measure.Report, b *servers.Broker) error {
	var cores [2]float64
	var peak [2]float64
	for side, kind := range []string{"growth-idle-ours", "growth-idle-plain"} {
		p := measure.Piece{Kind: kind, URL: b.Url, Topic: servers.Fresh("growth"), Payload: 200, Count: 1, Seconds: idleSeconds, Partitions: idleSize}
		if err := b.Create(ctx, p); err != nil {
			return err
		}
		o, err := measure.Run(ctx, p)
		if err != nil {
			return err
		}
		cores[side], peak[side] = o.CPU/o.Seconds, o.PeakMiB
		if err := b.Remove(ctx, p); err != nil {
			return err
		}
	}
	r.Row("growth idle\t%d partitions\tcores: %.4f\tplain: %.3f\tpeak MiB: %.0f\tplain: %.0f", idleSize, cores[0], cores[1], peak[0], peak[1])
	r.Figure("growth_idle_plain_cores", cores[1])
	r.Figure("growth_idle_ours_peak_mib", peak[0])
	r.Figure("growth_idle_plain_peak_mib", peak[1])
	r.AtMost("growth_idle_cores_1000_partitions", cores[0], .01)
	return nil
}
