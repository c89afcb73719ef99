package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// pair is two pieces that run in turn; the target is about the ratio of a to b.
type pair struct {
	name, a, b string
	payload    int
	kind       messaging.SubscriptionType // of consumers
	order      messaging.Order            // the same
	callers    int
	count      int
	rounds     int // turns, where the default is too few for the spread
	broker     *servers.Broker
	want       float64
	// value is what of a and b is compared: by default the ratio of their rates.
	value func(a, b measure.Outcome) float64
	// most: the target is an upper bound.
	most bool
}

// pieceSeconds bounds one measured piece.
const pieceSeconds = 5

func messagingScenario(ctx context.Context, r *measure.Report) error {
	near, err := servers.StartBroker(ctx, servers.Options{})
	if err != nil {
		return err
	}
	defer near.Stop()
	var far *servers.Broker
	if r.Wants("ops_20ms_ack") {
		line, err := proxy.New()
		if err != nil {
			return err
		}
		if far, err = servers.StartFarBroker(ctx, line, servers.Options{}); err != nil {
			return err
		}
		defer far.Stop()
		defer line.Close()
		if err := line.Latency(20 * time.Millisecond); err != nil {
			return err
		}
	}

	r.Row("part\tpayload\tours msg/s\traw msg/s\tratio (median, min-max)\tours p50/p99 ms\traw p50/p99 ms\tours CPU µs/msg\traw\tours peak MiB\traw\tallocs/msg\traw")
	for _, p := range []pair{
		{name: "ops_200B", a: "ops-async", b: "raw-async", payload: 200, count: 2_000_000, rounds: 15, want: .95},
		{name: "ops_1KiB", a: "ops-async", b: "raw-async", payload: 1024, count: 600_000, rounds: 15, want: .95},
		{name: "ops_20ms_ack", a: "ops-async", b: "raw-original", payload: 200, count: 1_000_000, broker: far, want: 3},
		{name: "business_1000_callers", a: "business-sync", b: "raw-sync", payload: 200, callers: 1000, count: 200_000, want: 2},
		{
			name: "business_lone_caller_p50_minus_raw_ms", a: "business-sync", b: "raw-sync", payload: 200, callers: 1, count: 3000, want: .3, most: true,
			value: func(a, b measure.Outcome) float64 { return a.P50 - b.P50 },
		},
		{name: "consume_200B", a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_1KiB", a: "library-consume", b: "raw-consume", payload: 1024, count: 400_000, want: .9},
		{name: "consume_exclusive_key", kind: messaging.Exclusive, order: messaging.OrderKey, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_exclusive_partition", kind: messaging.Exclusive, order: messaging.OrderPartition, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_exclusive_total", kind: messaging.Exclusive, order: messaging.OrderTotal, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_failover_key", kind: messaging.Failover, order: messaging.OrderKey, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_failover_partition", kind: messaging.Failover, order: messaging.OrderPartition, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
		{name: "consume_failover_total", kind: messaging.Failover, order: messaging.OrderTotal, a: "library-consume", b: "raw-consume", payload: 200, count: 1_000_000, want: .9},
	} {
		if !r.Wants(p.name) {
			continue
		}
		if p.broker == nil {
			p.broker = near
		}
		if err := compare(ctx, r, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := growth(ctx, r, near); err != nil {
		return fmt.Errorf("growth: %w", err)
	}
	return perf(ctx, r, near)
}

// compare runs a pair in turn and reports the median of its pairwise values.
func compare(ctx context.Context, r *measure.Report, p pair) error {
	var values, rateA, rateB []float64
	var as, bs []measure.Outcome
	consume := strings.Contains(p.a, "consume")
	b := p.broker
	shared := ""
	if consume {
		// Both sides read what one producer of the library's settings has written.
		shared = servers.Fresh(p.name)
		if _, err := measure.Run(ctx, measure.Piece{Kind: "ops-async", URL: b.Url, Topic: shared, Payload: p.payload, Count: p.count, Seconds: 120}); err != nil {
			return err
		}
	}
	for round := range max(r.Rounds, p.rounds) {
		var got [2]measure.Outcome
		// Who goes first alternates, so that neither always follows the other.
		order := [2]int{round % 2, 1 - round%2}
		for _, side := range order {
			kind := [2]string{p.a, p.b}[side]
			topic := shared
			if topic == "" {
				topic = servers.Fresh(p.name)
			}
			spec := measure.Piece{Kind: kind, URL: b.Url, Listener: b.Listener, Topic: topic, Payload: p.payload, Count: p.count, Seconds: pieceSeconds, Callers: p.callers,
				Type: string(p.kind), Order: string(p.order)}
			if r.Profile != "" && round == 0 {
				spec.Profile = filepath.Join(r.Profile, p.name+"-"+kind)
			}
			o, err := measure.Run(ctx, spec)
			if err != nil {
				return err
			}
			if !consume {
				// Counted at the destination: what was acknowledged is stored, once.
				n, err := b.Stored(ctx, topic)
				if err != nil {
					return err
				}
				if warm := pieces.WarmUp(p.callers); n != o.Messages+warm {
					return fmt.Errorf("%s acknowledged %d messages, the topic holds %d", kind, o.Messages+warm, n)
				}
			}
			got[side] = o
		}
		as, bs = append(as, got[0]), append(bs, got[1])
		rateA, rateB = append(rateA, got[0].Rate()), append(rateB, got[1].Rate())
		v := got[0].Rate() / got[1].Rate()
		if p.value != nil {
			v = p.value(got[0], got[1])
		}
		values = append(values, v)
	}
	of := func(os []measure.Outcome, f func(measure.Outcome) float64) float64 {
		var vs []float64
		for _, o := range os {
			vs = append(vs, f(o))
		}
		return measure.Median(vs)
	}
	perMsg := func(o measure.Outcome) float64 { return o.CPU / float64(o.Messages) * 1e6 }
	r.Row("%s\t%d B\t%.0f\t%.0f\t%.3f (%.3f-%.3f)\t%.2f/%.2f\t%.2f/%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.1f\t%.1f", p.name, p.payload,
		measure.Median(rateA), measure.Median(rateB), measure.Median(values), measure.Least(values), measure.Most(values),
		of(as, func(o measure.Outcome) float64 { return o.P50 }), of(as, func(o measure.Outcome) float64 { return o.P99 }),
		of(bs, func(o measure.Outcome) float64 { return o.P50 }), of(bs, func(o measure.Outcome) float64 { return o.P99 }),
		of(as, perMsg), of(bs, perMsg),
		of(as, func(o measure.Outcome) float64 { return o.PeakMiB }), of(bs, func(o measure.Outcome) float64 { return o.PeakMiB }),
		of(as, func(o measure.Outcome) float64 { return o.Allocs }), of(bs, func(o measure.Outcome) float64 { return o.Allocs }))
	r.Figure(p.name+"_ours_msg_s", measure.Median(rateA))
	r.Figure(p.name+"_raw_msg_s", measure.Median(rateB))
	if p.most {
		r.AtMost(p.name, measure.Median(values), p.want)
	} else {
		r.AtLeast(p.name, measure.Median(values), p.want)
	}
	return nil
}

// perf prints what Pulsar's own Java benchmark reaches with the same payload, for
// orientation: it is another client, in another language.
func perf(ctx context.Context, r *measure.Report, b *servers.Broker) error {
	if !r.Wants("pulsar_perf") {
		return nil
	}
	home, err := stack.PulsarHome(ctx, os.Stderr)
	if err != nil {
		return err
	}
	logs, err := os.MkdirTemp("", "aviary-perf-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(logs)) }()
	topic := servers.Fresh("perf")
	run := func(args ...string) (float64, error) {
		ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(home, "bin", "pulsar-perf"), args...)
		cmd.Env = append(os.Environ(), "PULSAR_LOG_DIR="+logs, "PULSAR_MEM=-Xmx512m")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("pulsar-perf %s: %w\n%s", args[0], err, tail(string(out), 5))
		}
		return aggregated(string(out)), nil
	}
	for _, size := range []int{200, 1024} {
		produced, err := run("produce", "-u", b.Url, "-s", strconv.Itoa(size), "-r", "10000000", "-time", "15", "-z", "LZ4", "-o", "100000", "-p", "0", topic)
		if err != nil {
			return err
		}
		consumed, err := run("consume", "-u", b.Url, "-time", "15", "-ss", "perf", "-sp", "Earliest", topic)
		if err != nil {
			return err
		}
		r.Row("pulsar_perf produce / consume\t%d B\t%.0f\t%.0f", size, produced, consumed)
		r.Figure(fmt.Sprintf("pulsar_perf_produce_%dB_msg_s", size), produced)
		r.Figure(fmt.Sprintf("pulsar_perf_consume_%dB_msg_s", size), consumed)
		topic = servers.Fresh("perf")
	}
	return err
}

// aggregated finds the overall rate that pulsar-perf prints at its end.
func aggregated(out string) float64 {
	m := regexp.MustCompile(`Aggregated throughput stats --- .*?([0-9.,]+) msg/s`).FindStringSubmatch(out)
	if m == nil {
		return 0
	}
	v, _ := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	return v
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}
